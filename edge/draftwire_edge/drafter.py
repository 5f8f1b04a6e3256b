"""What the edge session needs of a drafter, whatever makes the guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from draftwire_protocol.proposal import Proposal
from draftwire_protocol.sampling import Float32Array

if TYPE_CHECKING:
    from draftwire_edge.proposer import Proposer


#: What a guess comes from: the draft model, or a copy of earlier text.
GuessSource = Literal["model", "lookup"]


@dataclass(frozen=True, slots=True)
class Guess:
    """One drafted token."""

    token: int
    #: The drafter's probability of its likeliest token here, before noise; 0 .. 1.
    top_probability: float
    #: What it was drawn from; None where guesses are accepted by equality.
    proposal: Proposal | None = None
    source: GuessSource = "model"


class Guesser(Protocol):
    """What a draft model needs to turn its logits into guesses; ``Proposer`` is one."""

    def begin(self, context: Sequence[int]) -> None:
        """A block starts after this context."""

    def guess(self, logits: Float32Array) -> Guess:
        """The guess for the block's next place; later ones assume it.

        Args:
            logits: float32 ``[n_tokens]``; only read.
        """


#: Asked after each guess with the block so far: is one more worth drafting?
WantMore = Callable[[Sequence[Guess]], bool]


@runtime_checkable
class Interruptible(Protocol):
    """A drafter that can drop what it is at."""

    def interrupt(self) -> None:
        """End the ``draft`` at hand with what it has; may be called from any thread, and be too late.

        Reading (``prefill``) goes on: what was read is of use to the next draft.
        """


class Drafter(Protocol):
    """Guesses the tokens that follow a context.

    One owner: all calls come from one thread at a time.
    """

    @property
    def name(self) -> str:
        """Shown to the user, e.g. the model file's name or "ngram"."""

    @property
    def context_length(self) -> int:
        """Most tokens, context and draft together, that it can handle."""

    @property
    def model_seconds(self) -> float:
        """Time spent inside the model so far, in seconds; the rest of ``draft`` is our own work."""

    def prefill(self, context: Sequence[int]) -> None:
        """Take in a context before it is needed; reuses what is already there."""

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """Guess up to ``limit`` tokens after ``context``.

        Args:
            context: prompt and committed output, ``[n]``, n >= 1.
            proposer: turns the model's logits into guesses.
            limit: most guesses, >= 1.
            want_more: asked after each guess but the last; False ends the block.

        Returns:
            The block, possibly empty when it has nothing to propose.

        Raises:
            DrafterError: the model failed.
        """

    def close(self) -> None:
        """Free the model."""
