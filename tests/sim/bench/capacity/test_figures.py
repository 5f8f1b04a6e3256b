"""From texts to figures: each against its definition, or against a count by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol.messages import ServerTiming, Usage
from draftwire_sim.bench.capacity.figures import (
    arm_figures,
    peak_tokens,
    percentile,
    ratios,
    steady_rate,
    steady_verdicts,
    steps,
    summarise,
)
from draftwire_sim.bench.capacity.records import Written
from sim.bench.capacity.worlds import seen, turn, written

#: Whole numbers of moments, so that several things fall on the same one.
_MOMENTS = st.integers(0, 12)


@st.composite
def texts(draw: st.DrawFn) -> Written:
    asked = draw(_MOMENTS)
    moments = sorted(draw(st.lists(st.integers(asked, 15), min_size=1, max_size=6)))
    verdicts = [seen(at, draw(st.integers(1, 5))) for at in moments]
    return written(verdicts, asked_at_s=asked, prompt_tokens=draw(st.integers(1, 20)))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], percent: float
) -> None:
    def share(value: float) -> float:
        return 100 * sum(one <= value for one in values) / len(values)

    found = percentile(values, percent)
    assert found in values
    assert share(found) >= percent * (1 - 1e-12)
    assert all(share(one) < percent * (1 + 1e-12) for one in values if one < found)


def test_percentiles_of_a_hundred() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_a_percentile_that_does_not_exist_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


@given(st.lists(texts(), min_size=1, max_size=5))
def test_peak_tokens_is_the_most_held_at_any_moment(some: list[Written]) -> None:
    def held(moment: float) -> int:
        return sum(
            text.prompt_tokens + sum(one.tokens for one in text.seen if one.at_s <= moment)
            for text in some
            if text.asked_at_s <= moment <= text.ended_at_s
        )

    assert peak_tokens(some) == max(held(moment) for moment in range(16))


def test_a_pass_over_several_counts_once() -> None:
    three = [seen(1.0, timing=ServerTiming(batch_size=3)) for _ in range(3)]
    assert steps([*three, seen(2.0)]) == pytest.approx(2.0)


def test_the_steady_rate_counts_while_all_write() -> None:
    early = written([seen(1.0), seen(2.0, 5), seen(4.0, 3), seen(6.0, 7)])
    late = written([seen(2.0), seen(4.0, 2), seen(5.0, 4), seen(7.0, 9)])
    # All write from 2.0, when the later one has its first token, to 6.0, when the earlier one ends.
    both = turn("batched", 2, 7.0, [early, late])
    assert steady_rate(both) == pytest.approx((3 + 7 + 2 + 4) / 4.0)
    assert sorted(one.tokens for one in steady_verdicts(both)) == [2, 3, 4, 7]


def test_of_texts_in_a_row_the_steady_time_goes_on_over_the_pause_between_them() -> None:
    first = [
        written([seen(1.0), seen(2.0, 5)], asked_at_s=0.0),
        written([seen(4.0, 2), seen(6.0, 7)], asked_at_s=2.0),
    ]
    second = [
        written([seen(1.5), seen(3.0, 3)], asked_at_s=0.0),
        written([seen(5.0, 1), seen(9.0, 8)], asked_at_s=3.0),
    ]
    both = turn("batched", 2, 9.0, [*first, *second], in_a_row=2)
    # From 1.5 to 6.0; the second texts' first tokens count, but their prompts' time is no verdict's.
    assert steady_rate(both) == pytest.approx((5 + 2 + 7 + 3 + 1) / 4.5)
    assert sorted(one.tokens for one in steady_verdicts(both)) == [3, 5, 7]


def test_there_is_no_steady_rate_where_one_ends_before_another_begins() -> None:
    for first in ([seen(1.0)], [seen(1.0), seen(2.0)]):
        apart = turn("batched", 2, 3.0, [written(first), written([seen(2.0), seen(3.0)])])
        assert steady_rate(apart) is None
        assert steady_verdicts(apart) == []


def test_the_figures_of_one_arm() -> None:
    timing = ServerTiming(queue_us=1000, forward_us=4000, other_us=500, batch_size=2)
    one = written([seen(1.0, 1, 0.9), seen(2.0, 3, 0.2, timing)], usage=Usage(10, 4, 2, 5, 2))
    two = written([seen(1.5, 1, 1.1), seen(2.5, 1, 0.4, timing)], usage=Usage(10, 2, 2, 5, 0))
    found = arm_figures([turn("batched", 2, 2.0, [one, two])], 100)
    assert found == {
        "tokens_per_s": 3.0,
        # From 1.5 to 2.0, when the first one ends.
        "steady_tokens_per_s": 6.0,
        "steady_verdict_p99_ms": 200.0,
        "verdict_p50_ms": 200.0,
        "verdict_p99_ms": 400.0,
        "queue_ms": 1.0,
        "forward_ms": 4.0,
        "other_ms": 0.5,
        "ttft_p50_ms": 1000.0,
        "passes_per_token": 0.75,
        # Two prompts alone, and half a pass for each of the others.
        "steps_per_token": 0.5,
        "batch_size": pytest.approx(4 / 3, abs=1e-4),
        "acceptance": 0.2,
        # At 2.0 the first text has all of its 4 tokens and the second one of 2, besides two prompts of 10.
        "kv_bytes": 2500.0,
    }


def test_an_arm_without_edges_of_ours_has_its_rate_alone() -> None:
    assert arm_figures([turn("vllm", 1, 4.0, (), other_tokens=64)], 100) == {"tokens_per_s": 16.0}


def test_unknown_bytes_and_no_second_verdict_leave_their_figures_out() -> None:
    found = arm_figures([turn("cloud", 1, 1.0, [written([seen(1.0)])])], None)
    assert "kv_bytes" not in found
    assert "verdict_p50_ms" not in found
    assert "steady_tokens_per_s" not in found
    assert found["acceptance"] == 0.0


def one_text(tokens: int) -> list[Written]:
    return [written([seen(1.0, tokens)])]


def test_ratios_are_those_of_the_same_turn_and_number_of_edges() -> None:
    turns = [
        turn("batched", 2, 1.0, one_text(30), number=0),
        turn("unbatched", 2, 1.0, one_text(10), number=0),
        turn("batched", 2, 2.0, one_text(10), number=1),
        turn("unbatched", 2, 1.0, one_text(10), number=1),
        turn("batched", 2, 1.0, one_text(90), number=2),
        turn("unbatched", 2, 1.0, one_text(10), number=2),
        turn("batched", 4, 1.0, one_text(70), number=0),
    ]
    assert ratios(turns, "batched", "unbatched") == {"2": 3.0}


def test_the_summary_has_every_arm_and_the_batched_one_on_top() -> None:
    turns = [
        turn(arm, clients, seconds, one_text(40))
        for clients in (16, 2)
        for arm, seconds in (("batched", 1.0), ("unbatched", 2.0))
    ]
    summary = summarise(turns, 8)
    assert summary["batched_vs_unbatched"] == {"16": 2.0, "2": 2.0}
    assert summary["tokens_per_s"] == {"16": 40.0, "2": 40.0}
    assert summary["arms"]["unbatched"]["tokens_per_s"] == {"16": 20.0, "2": 20.0}
    assert summary["arms"]["batched"]["kv_bytes"] == {"16": 400.0, "2": 400.0}
    assert summary["identical"]
    assert "vllm_identical" not in summary


@pytest.mark.parametrize(("arm", "ours", "vllm"), [("cloud", False, True), ("vllm", True, False)])
def test_one_different_text_is_told_and_vllms_are_not_ours(arm: str, ours: bool, vllm: bool) -> None:
    turns = [
        turn(one, 1, 1.0, one_text(4), number=number, identical=(one, number) != (arm, 1))
        for one in ("batched", "cloud", "vllm")
        for number in (0, 1)
    ]
    summary = summarise(turns, None)
    assert (summary["identical"], summary["vllm_identical"]) == (ours, vllm)


def test_without_the_batched_arm_nothing_is_on_top() -> None:
    summary = summarise([turn("cloud", 1, 1.0, one_text(4))], None)
    assert summary["tokens_per_s"] == {}
    assert summary["batched_vs_unbatched"] == {}
    assert summary["arms"]["cloud"]["tokens_per_s"] == {"1": 4.0}
