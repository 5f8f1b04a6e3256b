"""What the edge drafted ahead of the committed text, where it drafts on while verdicts are in flight."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_protocol.errors import ProtocolError, StaleDraftError
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Draft

#: The edge may have a full window beyond what it knows of, and the cloud may not have looked yet.
_MOST_TOKENS = 4 * MAX_DRAFT_TOKENS


class Lookahead:
    """The tokens of the edge's present branch that may go on behind the text."""

    def __init__(self) -> None:
        #: Lowest epoch that is not dead.
        self.epoch = 0
        self._start = 0
        self._tokens: list[int] = []
        #: The edge's chance of each, in 255ths; None where it said none.
        self._chances: list[int | None] = []
        #: Whether the present epoch has begun.
        self._begun = False

    def receive(self, draft: Draft, length: int) -> None:
        """Take in a block: the branch goes on, or a new one begins.

        Args:
            draft: one whose branch is dead changes nothing, nor does one without tokens.
            length: of the committed text, prompt included.

        Raises:
            StaleDraftError: it starts beyond the text, or leaves a hole in its branch.
            ProtocolError: far more tokens than a window.
        """
        end = self._start + len(self._tokens)
        if draft.epoch < self.epoch or not draft.ids:
            return
        chances = draft.chances or [None] * len(draft.ids)
        if self._begun and draft.epoch == self.epoch and draft.start <= end:
            self._tokens += draft.ids[end - draft.start :]  # what overlaps is a late copy
            self._chances += chances[end - draft.start :]
        elif draft.start <= length and not (self._begun and draft.epoch == self.epoch):
            self.epoch, self._start = draft.epoch, draft.start
            self._tokens, self._chances = list(draft.ids), list(chances)
            self._begun = True
        else:
            raise StaleDraftError(
                f"draft starts at {draft.start}, the text ends at {length} and its branch at {end}"
            )
        if len(self._tokens) > _MOST_TOKENS:
            raise ProtocolError(f"{len(self._tokens)} drafted tokens wait; at most {_MOST_TOKENS}")

    def usable(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """The drafted tokens that follow the text, at most ``most`` of them.

        Tokens for places that the text has passed are compared with it; where one differs, the branch
        is dead.

        Args:
            ids: prompt and committed output.
        """
        passed = list(ids[self._start : self._start + len(self._tokens)])
        if self._tokens[: len(passed)] != passed:
            self.kill(self.epoch)
        del self._tokens[: len(passed)], self._chances[: len(passed)]
        self._start += len(passed)
        return tuple(self._tokens[: max(most, 0)])

    def chances(self, n: int, otherwise: float) -> list[float]:
        """Of the next n drafted tokens, each one's chance to be accepted if those before it are.

        Args:
            n: at most as many as were `usable`.
            otherwise: where the edge did not say.
        """
        return [otherwise if one is None else one / 255 for one in self._chances[:n]]

    def kill(self, epoch: int) -> None:
        """A branch is dead; the edge starts a later one."""
        if epoch >= self.epoch:
            self.epoch, self._begun = epoch + 1, False
            self._tokens.clear()
            self._chances.clear()
