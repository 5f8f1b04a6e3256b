"""A generation in progress on the edge: what is committed, and where each token came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire_edge.drafter import Guess
from draftwire_edge.generation import (
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
from draftwire_protocol.messages import Mode, TokenLogprobs, Verdict
from draftwire_protocol.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Block:
    """A drafted block and the seconds it took."""

    guesses: list[Guess] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ids(self) -> tuple[int, ...]:
        """Drafted ids, ``[gamma]``."""
        return tuple(guess.token for guess in self.guesses)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """What the ids were drawn from; empty where they are accepted by equality."""
        return tuple(guess.proposal for guess in self.guesses if guess.proposal is not None)


@dataclass(slots=True)
class Run:
    """State of one generation; outlives its streams."""

    request: GenerationRequest
    transcript: Transcript
    proposer: Proposer
    recorder: Recorder
    #: The mode the edge asked for last.
    asked_mode: Mode = Mode.LOCKSTEP
    #: Whether the next verdict comes without a Draft having been sent.
    filling: bool = False
    #: Whether the drafter has more to read than the last round's tokens.
    drafter_behind: bool = True
    #: Whether this stream has had no verdict yet; the first one's forward pass reads the prompt.
    fresh: bool = True
    epoch: int = 0
    #: Set by the cloud when it ended the text for a reason of its own.
    ended: FinishReason | None = None
    sources: list[Source] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    #: Waiting to be shown.
    notices: list[NoticeEvent] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Prompt and committed output."""
        return [*self.request.prompt_ids, *self.transcript.ids]

    @property
    def length(self) -> int:
        """Number of ids: the position of the next token."""
        return len(self.request.prompt_ids) + len(self.transcript.ids)

    def commit(self, block: Block, verdict: Verdict, now: float) -> list[TokenEvent]:
        """Commit a verdict's tokens, by the same transaction as the cloud.

        Args:
            block: what was drafted for this verdict.
            verdict: the cloud's answer.
            now: in seconds.

        Raises:
            ProtocolError: the verdict does not fit the block or the text.
        """
        if verdict.start != self.length or verdict.num_accepted > len(block.guesses):
            raise ProtocolError(
                f"a verdict on {verdict.num_accepted} tokens at {verdict.start} does not fit "
                f"a block of {len(block.guesses)} at {self.length}"
            )
        ids = [*block.ids[: verdict.num_accepted], *verdict.ids]
        commit = self.transcript.commit(ids)
        if len(commit.ids) != len(ids):
            raise ProtocolError("the two ends disagree on where the text ends; do they run the same version?")
        wanted = 0 if self.request.top_logprobs is None else len(ids)
        if len(verdict.logprobs) != wanted:
            raise ProtocolError(f"{len(verdict.logprobs)} log-probabilities came, {wanted} were expected")
        own: Source = "fill" if self.filling else "target"
        drafted: list[Source] = ["draft"] * verdict.num_accepted
        sources = drafted + [own] * len(verdict.ids)
        self.sources.extend(sources)
        self.texts.extend(commit.texts)
        self.logprobs.extend(verdict.logprobs)
        self.recorder.tokens(len(ids), now)
        if verdict.num_accepted < len(block.guesses):
            self.epoch += 1
        logprobs = verdict.logprobs or [None] * len(ids)
        return [TokenEvent(*row) for row in zip(commit.ids, commit.texts, sources, logprobs, strict=True)]

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
