"""Plain counters of the engine, and how Prometheus' metrics are named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_cloud.counts import EngineCounts, Histogram, SpeculationCounts
from draftwire_cloud.metrics import SHOWN
from draftwire_cloud.scheduler import Job
from draftwire_cloud.serve_command import ServeJob
from draftwire_cloud.session import Work
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import Mode, ServerTiming, Verdict

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
UNITS = {"bytes", "seconds", "sessions", "streams", "blocks", "rows"}


def verdict(num_drafted: int, num_accepted: int, n_own: int = 1, **fields: Any) -> Verdict:
    lockstep = Verdict(0, 9, num_accepted, tuple(range(n_own)), Mode.LOCKSTEP, num_drafted=num_drafted)
    return replace(lockstep, **fields)


def job(fed: int, num_logits: int, *, answered: bool, emptied: bool = False) -> Job[Any]:
    stream = SimpleNamespace(first_verdict_sent=answered, emptied=emptied)
    return Job(stream, Work([1] * fed, num_logits))  # type: ignore[arg-type]


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 12.0


def test_drafts_are_counted_after_truncation() -> None:
    counts = SpeculationCounts()
    counts.add(verdict(4, 2), finished=False)  # two kept, then the target's own
    counts.add(verdict(4, 4), finished=False)  # a bonus token
    counts.add(verdict(4, 2, n_own=0), finished=True)  # the text ended within the block
    counts.add(verdict(4, 1), finished=True)  # it ended with the recovered token
    counts.add(verdict(0, 0), finished=False)  # no draft
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (4, 4 + 4 + 2 + 2, 9)
    assert counts.num_accepted_tokens_per_pos[:5] == [4, 3, 1, 1, 0]
    assert sum(counts.num_accepted_tokens_per_pos) == counts.num_accepted_tokens
    assert (counts.output_tokens, counts.target_passes) == (3 + 5 + 2 + 2 + 1, 5)


def test_a_pass_tells_prompts_from_drafts_from_what_is_fed_once_more() -> None:
    counts = EngineCounts()
    batch = [
        job(100, 0, answered=False),  # a piece of a prompt
        job(7, 1, answered=False),  # its end
        job(5, 5, answered=True),  # four drafted tokens
        job(60, 0, answered=True, emptied=True),  # a session that was emptied, in two pieces
    ]
    counts.passed(batch, 0.25)
    counts.passed([job(13, 4, answered=True)], 0.001)
    counts.passed([job(5, 5, answered=True)], None)
    assert (counts.passes, counts.failed_passes) == (2, 1)
    assert counts.prompt_tokens == 107
    assert (counts.rebuilt, counts.rebuilt_tokens) == (1, 60 + 9)
    assert (counts.pass_rows.total, counts.batch_size.total, counts.pass_s.total) == (185, 5, 0.251)


def test_a_first_verdict_is_timed_by_itself() -> None:
    counts = EngineCounts()
    timing = ServerTiming(queue_us=3_000, forward_us=20_000, other_us=1_000)
    counts.answered(verdict(0, 0, timing=timing), 1.5, finished=False)
    counts.answered(verdict(2, 1, timing=timing), None, finished=False)
    assert counts.first_verdict_s.total == 1.5
    assert counts.queue_s.total == pytest.approx(0.003)
    assert counts.verdict_s.total == pytest.approx(0.024)
    assert sum(counts.queue_s.counts) == sum(counts.verdict_s.counts) == 1


def test_fills_are_the_clouds_own_tokens_where_it_need_not_wait() -> None:
    counts = EngineCounts()
    counts.answered(verdict(0, 0, mode=Mode.DUPLEX, fill_refused=True), None, finished=False)
    counts.answered(verdict(2, 1, mode=Mode.DUPLEX), None, finished=False)
    counts.answered(verdict(0, 0, mode=Mode.CLOUD), None, finished=False)
    counts.answered(verdict(0, 0, mode=Mode.LOCKSTEP), None, finished=False)
    assert counts.fill_tokens == {Mode.CLOUD: 1, Mode.DUPLEX: 1}
    assert counts.fills_refused == 1


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.name)
def test_names_follow_prometheus(shown: Any) -> None:
    assert re.fullmatch(r"draftwire_[a-z]+(_[a-z]+)*", shown.name)
    assert (shown.name.endswith("_total")) == (shown.kind == "counter")
    assert shown.kind == "counter" or shown.name.rpartition("_")[2] in UNITS
    assert re.fullmatch(r"[A-Z].*\.", shown.meaning)
    assert shown.label in {"", "code", "method", "mode", "position", "reason", "source"}


def test_names_are_unique() -> None:
    assert len({shown.name for shown in SHOWN}) == len(SHOWN)


def test_the_docs_list_what_is_shown() -> None:
    cells = [line.strip("|").split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    documented = [tuple(cell.strip(" `") for cell in row) for row in cells]
    assert documented[0][0] == "draftwire_model_info"
    assert documented[1:] == [(one.name, one.kind, one.label, one.meaning) for one in SHOWN]


def test_replicas_are_not_asked_for_their_counters() -> None:
    fields: dict[str, Any] = {
        "model": "m", "host": "h", "port": 1, "dtype": "auto", "threads": None, "fixed_shapes": True,
        "kv_bytes": 1, "max_sessions": 1, "max_batch": 1, "lease_s": 1.0, "download": False,
    }  # fmt: skip
    assert ServeJob(**fields, engine="ray").metrics_address is None
    with pytest.raises(UserInputError, match=r"--metrics-port: .*replicas.*Leave"):
        ServeJob(**fields, engine="ray", metrics_port=0)
