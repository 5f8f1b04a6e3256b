"""What a long prompt does to the others: which verdicts count, and what is told."""

import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.intrusion import (
    Intrusions,
    during,
    measure_intrusions,
    summarise_intrusions,
)
from draftwire_sim.bench.capacity.measure import Plan
from draftwire_sim.bench.capacity.records import Written
from loop.harness import serving
from sim.bench.capacity.worlds import seen, turn, written


def text(*latencies_s: float, first_at_s: float = 1.0) -> Written:
    """A first token, then a verdict a second of the latencies named."""
    rounds = [seen(first_at_s + 1 + i, 2, latency_s) for i, latency_s in enumerate(latencies_s)]
    return written([seen(first_at_s), *rounds])


def intruder(asked_at_s: float, first_at_s: float, tokens: int = 4) -> Written:
    return written([seen(first_at_s, tokens, first_at_s - asked_at_s)], asked_at_s=asked_at_s)


def test_verdicts_count_that_come_between_the_prompt_and_its_first_token() -> None:
    beside = [text(0.1, 0.2, 0.3, 0.4), text(0.5, 0.6)]
    found = during(beside, intruder(2.0, 4.0))
    assert [one.latency_s for one in found] == [0.2, 0.3, 0.6]


def measured(**changes: object) -> Intrusions:
    found = Intrusions(
        6000,
        without=[turn("without", 2, 4.0, [text(0.1, 0.1), text(0.1, 0.3)])],
        beside=[turn("with", 2, 8.0, [text(0.2, 0.2, 0.8), text(0.2, 0.4)])],
        alone=[intruder(0.0, 2.0)],
        intruders=[intruder(1.5, 3.0)],
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_the_summary_compares_with_and_without() -> None:
    summary = summarise_intrusions(measured())
    assert summary["prompt_tokens"] == 6000
    assert summary["verdict_p50_ms"] == {"without": 100.0, "with": 200.0, "during": 200.0}
    assert summary["verdict_p99_ms"] == {"without": 300.0, "with": 800.0, "during": 400.0}
    assert summary["verdict_p50_ratio"] == 2.0
    assert summary["verdict_p99_ratio"] == pytest.approx(2.6667)
    assert summary["verdicts"] == {"without": 4, "with": 5, "during": 4}
    assert summary["ttft_ms"] == {"alone": 2000.0, "with": 1500.0}
    assert summary["tokens_per_s"] == {"without": 2.5, "with": 1.5}
    assert summary["identical"]


def test_it_is_told_when_edges_had_ended_before_the_prompt_was_read() -> None:
    assert summarise_intrusions(measured())["decoding_at_first_token"] == 1
    late = summarise_intrusions(measured(intruders=[intruder(1.5, 9.0)]))
    assert late["decoding_at_first_token"] == 0


def test_it_is_told_when_the_prompt_was_not_read_anew() -> None:
    cached = intruder(1.5, 3.0)
    cached.cached = 5999
    assert summarise_intrusions(measured())["cached"] == 0
    assert summarise_intrusions(measured(intruders=[cached]))["cached"] == 5999


@pytest.mark.parametrize(
    "changes",
    [
        {"intruders": [intruder(1.5, 3.0, tokens=3)]},
        {"alone": [intruder(0.0, 2.0), intruder(0.0, 2.0, tokens=5)]},
        {"beside": [turn("with", 1, 1.0, [text(0.1)], identical=False)]},
        {"without": [turn("without", 1, 1.0, [text(0.1)], identical=False)]},
    ],
    ids=["the long prompt's text beside others", "and alone", "a text with it", "a text without it"],
)
def test_one_other_text_is_told(changes: dict[str, object]) -> None:
    assert not summarise_intrusions(measured(**changes))["identical"]


async def test_a_long_prompt_that_does_not_fit_is_refused_by_name(endless: LoadedTarget) -> None:
    plan = Plan(("batched",), (1,), 1, 8, 5, 0.8, 0.0, 0)
    says = "--long-prompt: tiny has a context of 512 tokens. Give at most 508"
    async with serving(endless) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(UserInputError, match=says):
            await measure_intrusions(plan, 509, address, lambda _: None)
        measured = await measure_intrusions(plan, 508, address, lambda _: None)
    assert summarise_intrusions(measured)["prompt_tokens"] == 508
