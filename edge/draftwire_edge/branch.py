"""The edge's guesses behind the committed text: one branch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire_edge.drafter import Guess
from draftwire_protocol.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Judged:
    """A guess and what the target said of it."""

    guess: Guess
    accepted: bool


@dataclass(slots=True)
class Branch:
    """Guesses for consecutive positions from ``start`` on; the first ``len(sent_at)`` of them are sent."""

    epoch: int
    #: Position of the first guess: where the committed text ends.
    start: int
    guesses: list[Guess] = field(default_factory=list)
    #: When each was sent, in seconds.
    sent_at: list[float] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Position after the last guess."""
        return self.start + len(self.guesses)

    @property
    def ids(self) -> tuple[int, ...]:
        """Guessed ids, ``[k]``."""
        return tuple(guess.token for guess in self.guesses)

    @property
    def unsent(self) -> list[Guess]:
        """Guesses that the cloud has not been told."""
        return self.guesses[len(self.sent_at) :]

    def commit(self, ids: Sequence[int]) -> tuple[Branch, list[Judged]]:
        """The branch behind ``ids``, and what they say of the guesses.

        Where all guesses agree with the text it is this very branch, shortened; where the text has gone
        past it, an empty one of the same epoch; where one differs, an empty one of the next epoch.

        Args:
            ids: committed at ``start`` and after it.
        """
        tested: list[Judged] = []
        for token, guess in zip(ids, self.guesses, strict=False):
            tested.append(Judged(guess, token == guess.token))
            if token != guess.token:
                return Branch(self.epoch + 1, self.start + len(ids)), tested
        if len(ids) > len(self.guesses):
            return Branch(self.epoch, self.start + len(ids)), tested
        del self.guesses[: len(ids)], self.sent_at[: len(ids)]
        self.start += len(ids)
        return self, tested


def proposals_of(guesses: Sequence[Guess]) -> tuple[Proposal, ...]:
    """What the ids were drawn from; empty where they are accepted by equality."""
    return tuple(guess.proposal for guess in guesses if guess.proposal is not None)
