"""The messages of the wire as frozen dataclasses; ``codec.py`` turns them into protobuf and back.

Positions are absolute: index in prompt + output. Times are microseconds. See
``protos/draftwire/v1/speculation.proto`` for what each message means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import Proposal

#: Most drafted tokens in one Draft.
MAX_DRAFT_TOKENS = 64
#: Most likeliest ids whose log-probabilities come with a token.
MAX_TOP_LOGPROBS = 20
#: Largest message either side accepts, in bytes; a prompt of a million ids fits.
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
SERVICE_NAME = "draftwire.v1.SpeculationService"


class Mode(Enum):
    """Who waits for whom."""

    LOCKSTEP = "lockstep"
    CLOUD = "cloud"
    PIPELINED = "pipelined"
    DUPLEX = "duplex"

    @property
    def drafts_on(self) -> bool:
        """Whether the edge drafts while verdicts are in flight."""
        return self in {Mode.PIPELINED, Mode.DUPLEX}

    @property
    def fills(self) -> bool:
        """Whether the cloud decodes by itself when it holds no usable draft."""
        return self in {Mode.CLOUD, Mode.DUPLEX}


class Scheme(Enum):
    """How a drafted token is accepted."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the cloud says of its target model."""

    name: str
    architecture: str
    #: Width of the logits, padding included.
    n_vocab: int
    #: Number of real ids.
    n_tokens: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    special_ids: tuple[int, ...]
    #: From ``fingerprint.piece_hashes``.
    piece_hashes: bytes
    template_hash: bytes
    #: In tokens, prompt and output together.
    context_length: int
    dtype: str
    #: Whether block and one-at-a-time verification gave the same bits at start.
    exact_shapes: bool
    #: Identifies the weights and how they are computed with.
    model_id: bytes = b""
    #: The tokenizer's main end; None when it has none, or the cloud is too old to say.
    eos_id: int | None = None
    max_draft_tokens: int = MAX_DRAFT_TOKENS
    schemes: tuple[Scheme, ...] = tuple(Scheme)
    modes: tuple[Mode, ...] = tuple(Mode)
    #: Only when asked for.
    chat_template: str | None = None
    pieces: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a generation, or reopens one after a lost connection."""

    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    mode: Mode
    committed_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    scheme: Scheme = Scheme.COUPLED
    #: The card's, so that another model cannot continue the text; empty skips the check.
    model_id: bytes = b""
    #: Likeliest ids whose log-probabilities are wanted with each token's own; None for no log-probabilities.
    top_logprobs: int | None = None
    #: What the output must match; None for anything.
    grammar: GrammarSpec | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A block of drafted tokens; no ids asks for one target token."""

    epoch: int
    start: int
    ids: tuple[int, ...]
    #: What each id was drawn from; empty unless drafts are accepted by probability.
    proposals: tuple[Proposal, ...] = ()
    #: Of each id the chance that it is accepted if those before it are, in 255ths; empty where unknown.
    chances: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class SetMode:
    """Takes turns differently from now on."""

    mode: Mode


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the generation."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The generation is ready."""

    cached: int
    prefill_us: int


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """Times of one verification step, in microseconds."""

    queue_us: int = 0
    forward_us: int = 0
    other_us: int = 0
    batch_size: int = 1

    @property
    def total_us(self) -> int:
        """All the time the answer spent in the cloud."""
        return self.queue_us + self.forward_us + self.other_us


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's log-probabilities at one position, before any sampling parameter acts."""

    #: Of the committed token.
    logprob: float
    #: (id, log-probability) of the likeliest ids, falling.
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's judgement of a block, or its own tokens."""

    epoch: int
    start: int
    num_accepted: int
    #: Target tokens after the accepted ones; empty when the text ended within the accepted ones.
    ids: tuple[int, ...]
    mode: Mode
    timing: ServerTiming = field(default_factory=ServerTiming)
    #: One for each committed token, accepted ones first; empty unless asked for.
    logprobs: tuple[TokenLogprobs, ...] = ()
    #: Drafted tokens that this forward pass judged, from ``start`` on.
    num_drafted: int = 0
    #: Most drafted tokens worth sending at once in lockstep; 0 for any number.
    gamma_budget: int = 0
    #: A fill was put off since the last verdict because others waited.
    fill_refused: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens used, counted after truncation."""

    prompt_tokens: int
    completion_tokens: int = 0
    #: Forward passes that produced tokens; the one that ends the prompt included.
    target_passes: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is over."""

    reason: FinishReason
    usage: Usage


def check_top_logprobs(count: int | None) -> None:
    """Refuse more likeliest ids than a verdict carries.

    Raises:
        UserInputError: out of range.
    """
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise UserInputError(
            "--logprobs", f"{count} is not in [0, {MAX_TOP_LOGPROBS}]", "Use 0 for the written token's alone"
        )


EdgeMessage = Open | Draft | SetMode | Cancel
CloudMessage = Opened | Verdict | Finished
