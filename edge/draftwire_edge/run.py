"""A generation in progress on the edge: what is committed, and where each token came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire_edge.branch import Branch, Judged
from draftwire_edge.controller import Plan
from draftwire_edge.drafter import Guess
from draftwire_edge.drafting import Drafting
from draftwire_edge.generation import (
    ExplainEvent,
    GenerationRequest,
    GenerationResult,
    NoticeEvent,
    Source,
    TokenEvent,
)
from draftwire_edge.proposer import Proposer
from draftwire_edge.recorder import Recorder
from draftwire_protocol.commit import FinishReason, Transcript
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Mode, TokenLogprobs, Verdict


@dataclass(frozen=True, slots=True)
class Committed:
    """What a verdict added to the text."""

    tokens: list[TokenEvent]
    judged: list[Judged]
    #: When the last draft that was judged had been sent, in seconds; None without one.
    sent_at: float | None
    #: Payload of the message with it.
    sent_bytes: int = 0


@dataclass(slots=True)
class Run:
    """State of one generation; outlives its streams."""

    request: GenerationRequest
    transcript: Transcript
    proposer: Proposer
    recorder: Recorder
    branch: Branch
    plan: Plan = field(default_factory=lambda: Plan(Mode.CLOUD))
    #: The mode the edge asked for last, and the one in force: to be waited for, the cloud must know.
    asked_mode: Mode = Mode.CLOUD
    mode: Mode = Mode.CLOUD
    #: Whether the cloud has all it needs for the next verdict, or has been asked for a token of its own.
    awaits_verdict: bool = True
    drafting: Drafting | None = None
    #: Whether the drafter has more to read than its last guess.
    drafter_behind: bool = True
    #: Committed ids that the drafter has been given.
    drafter_read: int = 0
    #: Whether the drafter has nothing to say until the text goes on.
    speechless: bool = False
    #: Whether this stream has had no verdict yet; the first one's forward pass reads the prompt.
    fresh: bool = True
    #: When the last Draft went out, and since when the edge has been working towards the next verdict.
    sent_at: float = 0.0
    #: Payload of that Draft.
    sent_bytes: int = 0
    #: When the stream was opened.
    opened_at: float = 0.0
    since: float = 0.0
    #: Set by the cloud when it ended the text for a reason of its own.
    ended: FinishReason | None = None
    sources: list[Source] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    #: Waiting to be shown.
    notices: list[NoticeEvent | ExplainEvent] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Prompt and committed output."""
        return [*self.request.prompt_ids, *self.transcript.ids]

    @property
    def length(self) -> int:
        """Number of ids: the position of the next token."""
        return len(self.request.prompt_ids) + len(self.transcript.ids)

    def reopen(self, plan: Plan, now: float) -> None:
        """A new stream begins at ``now``, in seconds: nothing is in flight."""
        self.plan, self.sent_at, self.opened_at = plan, now, now
        self.sent_bytes = 0
        self.asked_mode = self.mode = plan.mode
        self.branch = Branch(0, self.length)
        self.awaits_verdict = self.fresh = self.drafter_behind = True
        self.speechless = False

    def commit(self, verdict: Verdict, now: float) -> Committed:
        """Commit a verdict's tokens, by the same transaction as the cloud.

        Args:
            verdict: the cloud's answer.
            now: in seconds.

        Raises:
            ProtocolError: the verdict does not fit what was drafted, or the text.
        """
        accepted = self._accepted(verdict)
        ids = [*accepted, *verdict.ids]
        commit = self.transcript.commit(ids)
        if len(commit.ids) != len(ids):
            raise ProtocolError("the two ends disagree on where the text ends; do they run the same version?")
        wanted = 0 if self.request.top_logprobs is None else len(ids)
        if len(verdict.logprobs) != wanted:
            raise ProtocolError(f"{len(verdict.logprobs)} log-probabilities came, {wanted} were expected")
        own: Source = "fill" if self.mode.fills and not verdict.num_drafted else "target"
        drafted: list[Source] = ["draft"] * len(accepted)
        sources = drafted + [own] * len(verdict.ids)
        self.sources.extend(sources)
        self.texts.extend(commit.texts)
        self.logprobs.extend(verdict.logprobs)
        self.recorder.tokens(len(ids), now)
        sent_at, sent_bytes = self._last_sent(verdict)
        before = self.branch
        self.branch, judged = before.commit(ids)
        # In lockstep the drafter misses at most two tokens, which belong to the cost of its first guess.
        if self.mode is not Mode.LOCKSTEP and self.branch is not before:
            self.drafter_behind = True
        self.awaits_verdict, self.speechless = bool(self.branch.sent_at), False
        logprobs = verdict.logprobs or [None] * len(ids)
        rows = zip(commit.ids, commit.texts, sources, logprobs, strict=True)
        return Committed([TokenEvent(*row) for row in rows], judged, sent_at, sent_bytes)

    def judge_late(self, branch: Branch, guesses: Sequence[Guess]) -> list[Judged]:
        """What the text says of a guess that came after its branch had been overtaken.

        Nothing, where the branch had a wrong guess: what follows that one says nothing of the drafter.
        """
        ids = self.ids
        at = branch.end
        if not guesses or at >= len(ids) or list(branch.ids) != ids[branch.start : at]:
            return []
        return [Judged(guesses[0], accepted=guesses[0].token == ids[at])]

    def _accepted(self, verdict: Verdict) -> tuple[int, ...]:
        """The drafted ids that the verdict keeps."""
        count, branch = verdict.num_accepted, self.branch
        known = count == 0 or (verdict.epoch == branch.epoch and count <= len(branch.sent_at))
        if not count <= verdict.num_drafted <= MAX_DRAFT_TOKENS:
            raise ProtocolError(f"a verdict that keeps {count} of {verdict.num_drafted} drafted tokens")
        if verdict.start != self.length or not known:
            raise ProtocolError(
                f"a verdict on {count} tokens of epoch {verdict.epoch} at {verdict.start} does not fit "
                f"a draft of {len(branch.sent_at)} of epoch {branch.epoch} at {self.length}"
            )
        return branch.ids[:count]

    def _last_sent(self, verdict: Verdict) -> tuple[float | None, int]:
        """When the last of the judged drafts was sent, and the payload of its message."""
        if self.mode is Mode.LOCKSTEP:
            return self.sent_at, self.sent_bytes
        judged, branch = verdict.num_drafted, self.branch
        if not (judged and verdict.epoch == branch.epoch and judged <= len(branch.sent_at)):
            return None, 0
        return branch.sent_at[judged - 1], branch.sent_bytes[judged - 1]

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text is over; None while it is not."""
        return self.transcript.finish_reason or self.ended

    def result(self) -> GenerationResult:
        """The finished text and its figures."""
        return GenerationResult(
            text="".join(self.texts),
            token_ids=tuple(self.transcript.ids),
            sources=tuple(self.sources),
            finish_reason=self.finish_reason or FinishReason.CANCELLED,
            usage=self.recorder.usage(len(self.request.prompt_ids)),
            timings=self.recorder.timings(),
            logprobs=tuple(self.logprobs),
        )
