"""What the engine has done since it started, in plain numbers.

Pure. The event loop writes them, at most once a pass and a verdict; whoever exposes them reads from
another thread. Every read is of one number, or of a copied list, which is whole under the GIL; two
numbers read one after the other may lie a pass apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwire_cloud.scheduler import Job
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Mode, Verdict

#: Upper bounds of buckets: 1 ms to 10 s, and on to the minutes that a long prompt may wait.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_SECONDS = (*SECONDS, 30.0, 60.0, 120.0)
SESSIONS = tuple(float(1 << i) for i in range(8))
ROWS = tuple(float(1 << i) for i in range(13))

#: Why a session was not let in: as many as allowed are open, prompts wait too long, no memory.
Refusal = Literal["sessions", "queue", "memory"]


class Histogram:
    """How many values fell into each bucket.

    Args:
        bounds: highest value of each bucket but the last, which has none; ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        #: Of each bucket alone, ``[len(bounds) + 1]``.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Take in one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class SpeculationCounts:
    """What became of drafts, counted after truncation."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    #: By place in the block, ``[MAX_DRAFT_TOKENS]``.
    num_accepted_tokens_per_pos: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT_TOKENS)
    output_tokens: int = 0
    #: Verdicts, those without drafts included: each is one session's part of a pass.
    target_passes: int = 0

    def add(self, verdict: Verdict, *, finished: bool) -> None:
        """A verdict left.

        Args:
            verdict: what the edge is told.
            finished: whether it ended the text, and so perhaps cut the block.
        """
        kept = verdict.num_accepted + len(verdict.ids)
        drafted = min(verdict.num_drafted, kept) if finished else verdict.num_drafted
        self.target_passes += 1
        self.output_tokens += kept
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += verdict.num_accepted
        for position in range(verdict.num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1


@dataclass(slots=True)
class EngineCounts:
    """What the engine loop did."""

    opened: int = 0
    closed: int = 0
    refused: dict[Refusal, int] = field(default_factory=lambda: {"sessions": 0, "queue": 0, "memory": 0})
    #: Passes that gave no logits: no room for keys and values, or a fault.
    failed_passes: int = 0
    #: Of passes that gave logits.
    batch_size: Histogram = field(default_factory=lambda: Histogram(SESSIONS))
    pass_rows: Histogram = field(default_factory=lambda: Histogram(ROWS))
    pass_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    #: Of verdicts after a stream's first.
    queue_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    verdict_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    #: From Open to the first verdict.
    first_verdict_s: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    prompt_tokens: int = 0
    #: Emptied sessions that came back into a pass, and the tokens fed again for them.
    rebuilt: int = 0
    rebuilt_tokens: int = 0
    fill_tokens: dict[Mode, int] = field(default_factory=lambda: {Mode.CLOUD: 0, Mode.DUPLEX: 0})
    fills_refused: int = 0
    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)

    @property
    def passes(self) -> int:
        """Passes that gave logits."""
        return sum(list(self.pass_s.counts))

    def passed(self, jobs: Sequence[Job[Any]], seconds: float | None) -> None:
        """A pass is over.

        Args:
            jobs: whose tokens were in it; before the verdicts are sent.
            seconds: it took; None where it gave no logits.
        """
        self.rebuilt += sum(job.stream.emptied for job in jobs)
        if seconds is None:
            self.failed_passes += 1
            return
        self.batch_size.observe(len(jobs))
        self.pass_rows.observe(sum(len(job.work.ids) for job in jobs))
        self.pass_s.observe(seconds)
        for stream, work in jobs:
            if stream.first_verdict_sent:
                # One token was still to be fed, and what is drafted; the others had been fed before.
                self.rebuilt_tokens += len(work.ids) - work.num_logits
            else:
                self.prompt_tokens += len(work.ids) - max(work.num_logits - 1, 0)

    def answered(self, verdict: Verdict, first_s: float | None, *, finished: bool) -> None:
        """A verdict left.

        Args:
            verdict: what the edge is told.
            first_s: of a stream's first one, since Open.
            finished: whether it ended the text.
        """
        timing = verdict.timing
        if first_s is None:
            self.queue_s.observe(timing.queue_us / 1e6)
            self.verdict_s.observe((timing.queue_us + timing.forward_us + timing.other_us) / 1e6)
        else:
            self.first_verdict_s.observe(first_s)
        if verdict.mode.fills and not verdict.num_drafted:
            self.fill_tokens[verdict.mode] += len(verdict.ids)
        self.fills_refused += verdict.fill_refused
        self.speculation.add(verdict, finished=finished)
