"""The drafter that needs no model: it proposes what followed the same words earlier in the text."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.proposer import Proposer
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.prefix import common_prefix

#: Earlier occurrences that are asked what comes next.
WITNESSES = 8
_UNLIMITED = 1 << 30


class NgramDrafter:
    """Prompt lookup.

    The last n tokens of the context are looked up in the context itself, longest n first; of the places
    where they occur the most recent one is copied on, token by token, into its own copy if need be (so
    "abcabc" goes on as "abc"). It is worth trying where texts repeat themselves: edits, quotes, code.

    The confidence of a guess: of the ``WITNESSES`` most recent occurrences that agree with the block so
    far, ``hits`` agree on the next token too; the confidence is hits / (occurrences + 1).

    The index grows with the context and is cut back with it, so a call costs what changed since the last
    one, not the length of the text.

    Args:
        min_match, max_match: shortest and longest run of tokens to look up, 1 <= min <= max.
        context_length: most tokens, context and draft together.
    """

    def __init__(self, *, min_match: int = 2, max_match: int = 5, context_length: int = _UNLIMITED) -> None:
        if not 1 <= min_match <= max_match:
            raise UserInputError(
                "min_match, max_match", f"{min_match}, {max_match} is no range", "Use 1 <= min <= max"
            )
        self.name = "ngram"
        self.context_length = context_length
        #: There is no model.
        self.model_seconds = 0.0
        self._sizes = range(min_match, max_match + 1)
        self._ids: list[int] = []
        #: Run of tokens -> the positions that follow it, rising. A run at the very end is not in it yet.
        self._followers: dict[tuple[int, ...], list[int]] = {}

    def prefill(self, context: Sequence[int]) -> None:
        """Index a context before it is needed."""
        keep = common_prefix(self._ids, context)
        while len(self._ids) > keep:
            self._forget_last()
        for token in context[keep:]:
            self._add(token)

    def draft(
        self,
        context: Sequence[int],
        proposer: Proposer,
        limit: int,
        want_more: WantMore,
    ) -> list[Guess]:
        """Copy up to ``limit`` tokens from where the context's end occurred before; [] when it did not."""
        self.prefill(context)
        limit = min(limit, self.context_length - len(context))
        witnesses = self._lookup()[-WITNESSES:]
        block: list[Guess] = []
        if limit < 1 or not witnesses:
            return block
        text = _Extended(self._ids)
        while True:
            token = text[witnesses[-1] + len(block)]
            agreeing = [place for place in witnesses if text[place + len(block)] == token]
            block.append(proposer.copied(token, len(agreeing) / (len(witnesses) + 1)))
            if len(block) >= limit or not want_more(block):
                return block
            text.tail.append(token)
            witnesses = agreeing

    def close(self) -> None:
        """Forget the text."""
        self._ids.clear()
        self._followers.clear()

    def _lookup(self) -> list[int]:
        """Positions that follow the longest run that ends the context and occurred before, rising."""
        for size in reversed(self._sizes):
            found = self._followers.get(tuple(self._ids[-size:]))
            if found and size <= len(self._ids):
                return found
        return []

    def _runs_at_end(self) -> list[tuple[int, ...]]:
        """The runs of each size that end the text."""
        return [tuple(self._ids[-size:]) for size in self._sizes if size <= len(self._ids)]

    def _add(self, token: int) -> None:
        """Append a token: it follows the runs that ended the text."""
        for run in self._runs_at_end():
            self._followers.setdefault(run, []).append(len(self._ids))
        self._ids.append(token)

    def _forget_last(self) -> None:
        """Undo the last ``_add``: it was the last one to put its position anywhere."""
        self._ids.pop()
        for run in self._runs_at_end():
            places = self._followers[run]
            places.pop()
            if not places:
                del self._followers[run]


class _Extended:
    """The context and, after it, the block so far, without copying the context."""

    def __init__(self, context: list[int]) -> None:
        self._context = context
        self.tail: list[int] = []

    def __getitem__(self, index: int) -> int:
        past = index - len(self._context)
        return self._context[index] if past < 0 else self.tail[past]
