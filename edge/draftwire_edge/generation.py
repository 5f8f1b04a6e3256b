"""One text in the making, as the edge sees it: request, committed ids, events, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftwire_edge.controller import Explanation
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Scheme, TokenLogprobs, Usage
from draftwire_protocol.params import SamplingParams

#: Where a committed token came from: kept from a draft, the target's own after a draft (recovered
#: or bonus), or decoded by the cloud without one.
Source = Literal["draft", "target", "fill"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to write."""

    #: Chat template applied, BOS included where the model wants one.
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    #: How guesses are accepted.
    scheme: Scheme = Scheme.COUPLED
    #: Likeliest ids whose log-probabilities are wanted with each token's own; None for none at all.
    top_logprobs: int | None = None
    #: What the text must match; None for anything.
    grammar: GrammarSpec | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token; its text may be empty while a character or a stop string is incomplete."""

    token_id: int
    text: str
    source: Source
    #: Only when asked for.
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """Something the user should know, said once."""

    message: str


@dataclass(frozen=True, slots=True)
class ExplainEvent:
    """What a verdict showed and what the controller made of it; only when asked for."""

    committed: int
    num_drafted: int
    num_accepted: int
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """Guesses of one source that the text came to, and how many of them it agreed with."""

    num_judged: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Figures of one generation; times in ms, sizes in bytes of payload."""

    ttft_ms: float
    #: Time per output token after the first; None with fewer than two tokens.
    tpot_ms: float | None
    rtt_ms: float
    draft_ms_per_token: float
    #: Mean forward pass of the target after the prompt's.
    verify_ms: float
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    bytes_up: int
    bytes_down: int
    target_passes: int
    #: Work besides the models, a round: on the edge, and in the cloud.
    edge_overhead_ms: float
    cloud_overhead_ms: float
    #: Payload of Draft messages per drafted token.
    draft_bytes_per_token: float
    #: Tokens that the drafter guessed, also those that no forward pass came to judge.
    num_guessed_tokens: int
    #: Of the draft model ("model") and of copies of earlier text ("lookup"), where they guessed.
    by_source: Mapping[str, SourceFigures]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: the 1 is the target's own token; None without drafts."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The finished text and everything known about it."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    #: One a token; empty unless asked for.
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """Last event of a generation."""

    result: GenerationResult


Event = TokenEvent | NoticeEvent | ExplainEvent | DoneEvent
