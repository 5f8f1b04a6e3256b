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
    #: Payload of the message that each came in.
    sent_bytes: list[int] = field(default_factory=list)
    #: Whether anything was ever sent of it.
    used: bool = False

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

        Where all guesses agree with the text it is this very branch, shortened. Where one differs it is an
        empty one, and where the text has gone past what was sent, one with the guesses that are left; either
        has another epoch, since the cloud knows a branch by its epoch and takes none with a hole.

        Args:
            ids: committed at ``start`` and after it.
        """
        judged: list[Judged] = []
        for token, guess in zip(ids, self.guesses, strict=False):
            judged.append(Judged(guess, token == guess.token))
            if token != guess.token:
                return self._next(len(ids), []), judged
        if len(ids) > len(self.sent_at):
            return self._next(len(ids), self.guesses[len(ids) :]), judged
        del self.guesses[: len(ids)], self.sent_at[: len(ids)], self.sent_bytes[: len(ids)]
        self.start += len(ids)
        return self, judged

    def sent(self, count: int, now: float, num_bytes: int = 0) -> None:
        """``count`` more guesses are on their way, at ``now`` in seconds, in a message of this payload."""
        self.sent_at += [now] * count
        self.sent_bytes += [num_bytes] * count
        self.used = self.used or count > 0

    def _next(self, count: int, guesses: list[Guess]) -> Branch:
        """A branch ``count`` tokens on, of which nothing is sent yet."""
        return Branch(self.epoch + self.used, self.start + count, guesses)


def proposals_of(guesses: Sequence[Guess]) -> tuple[Proposal, ...]:
    """What the ids were drawn from; empty where they are accepted by equality."""
    return tuple(guess.proposal for guess in guesses if guess.proposal is not None)
