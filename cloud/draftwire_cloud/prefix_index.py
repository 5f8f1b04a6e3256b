"""Which slot already holds the beginning of a prompt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from draftwire_protocol.prefix import common_prefix

#: Prompts are compared in pieces of this many tokens; a shorter common beginning is not worth a copy.
PIECE = 64


class HoldsIds(Protocol):
    """What the index looks at."""

    @property
    def ids(self) -> Sequence[int]:
        """Ids whose KV it holds, committed ones only."""


S = TypeVar("S", bound=HoldsIds)


class PrefixIndex(Generic[S]):
    """Finds slots by the beginning of their ids, within one owner.

    Owners never see each other's prompts, not even by how fast they are read.
    """

    def __init__(self) -> None:
        #: A chain of hashes names a beginning; equal names are checked against the ids.
        self._slots: dict[int, dict[S, None]] = {}
        self._names: dict[S, tuple[str, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def note(self, slot: S, owner: str) -> None:
        """Take in what a slot has come to hold. Only committed tokens may be in it."""
        _, names = self._names.setdefault(slot, (owner, []))
        if len(names) * PIECE > len(slot.ids):
            self.forget(slot)
            self.note(slot, owner)
            return
        while (len(names) + 1) * PIECE <= len(slot.ids):
            name = _next_name(names[-1] if names else hash(owner), slot.ids, len(names))
            names.append(name)
            self._slots.setdefault(name, {})[slot] = None

    def forget(self, slot: S) -> None:
        """The slot holds nothing any more; unknown ones are ignored."""
        for name in self._names.pop(slot, ("", []))[1]:
            self._slots[name].pop(slot, None)
            if not self._slots[name]:
                del self._slots[name]

    def longest(self, ids: Sequence[int], owner: str) -> tuple[S | None, int]:
        """The slot that shares the longest beginning, and how many tokens that is.

        Args:
            ids: of a prompt; the last one always has to be fed.
            owner: whose slots may be used.
        """
        name, found = hash(owner), None
        for number in range((len(ids) - 1) // PIECE):
            name = _next_name(name, ids, number)
            if name not in self._slots:
                break
            found = next(iter(self._slots[name]))
        if found is None:
            return None, 0
        length = common_prefix(found.ids, ids[:-1])
        return (found, length) if length >= PIECE else (None, 0)


def _next_name(before: int, ids: Sequence[int], number: int) -> int:
    return hash((before, *ids[number * PIECE : (number + 1) * PIECE]))
