"""Copies where the text repeats itself at length, and asks the draft model everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_edge.drafter import Drafter, Guess, Interruptible, WantMore
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.proposer import Proposer

#: Tokens that must have occurred before, in this order: fewer, and the draft model guesses better.
LONG_MATCH, LONGEST_MATCH = 6, 10


class LookupFirstDrafter:
    """Lookup first, the draft model behind it.

    A copy costs no decode; when it ends, the model reads what was copied in one batch and goes on.

    Args:
        model: the draft model's drafter; owned from now on.
        long_match: shortest repetition that is copied on.
    """

    def __init__(self, model: Drafter, *, long_match: int = LONG_MATCH) -> None:
        self.name = model.name
        self.context_length = model.context_length
        self._model = model
        self._lookup = NgramDrafter(
            min_match=long_match,
            max_match=max(long_match, LONGEST_MATCH),
            context_length=model.context_length,
        )

    @property
    def model_seconds(self) -> float:
        """Seconds spent inside the draft model so far."""
        return self._model.model_seconds

    def prefill(self, context: Sequence[int]) -> None:
        """Take in a context before it is needed."""
        self._lookup.prefill(context)
        self._model.prefill(context)

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """Guess up to ``limit`` tokens after ``context``: copies as far as they go, then the model's."""
        copied = self._lookup.draft(context, proposer, limit, want_more)
        if copied and (len(copied) >= limit or not want_more(copied)):
            return copied
        longer = [*context, *(guess.token for guess in copied)]
        guessed = self._model.draft(
            longer, proposer, limit - len(copied), lambda block: want_more([*copied, *block])
        )
        return copied + guessed

    def interrupt(self) -> None:
        """End the draft at hand, if the model can."""
        if isinstance(self._model, Interruptible):
            self._model.interrupt()

    def close(self) -> None:
        """Free the model."""
        self._lookup.close()
        self._model.close()
