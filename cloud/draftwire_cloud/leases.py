"""KV slots between streams.

They are kept for a while, so that a reopened session or the next turn of a chat finds its prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from draftwire_cloud.prefix_index import PIECE, PrefixIndex
from draftwire_protocol.errors import OverloadedError
from draftwire_protocol.prefix import common_prefix


class Slot(Protocol):
    """KV of one session, as far as leases care."""

    @property
    def ids(self) -> Sequence[int]:
        """Ids whose KV it holds."""

    @property
    def length(self) -> int:
        """How many ids it holds."""

    #: Most ids it may hold; memory is only taken as it fills, so it can be raised at any time.
    capacity: int

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` entries."""


S = TypeVar("S", bound=Slot)


class SlotStore(Protocol[S]):
    """Where slots come from."""

    def open(self, capacity: int) -> S:
        """A slot for ``capacity`` tokens; raises OverloadedError when there is no room."""

    def release(self, slot: S) -> None:
        """Give its memory back."""

    def empty(self, slot: S) -> None:
        """Drop what it holds and give the memory back; it stays open."""

    def inherit(self, slot: S, source: S, n: int) -> None:
        """Fill an empty slot with a copy of another one's first ``n`` tokens."""


@dataclass(slots=True)
class _Parked(Generic[S]):
    slot: S
    expires_at: float


@dataclass(slots=True)
class LeaseCounts:
    """What became of prompts and slots since the service started."""

    #: Prompt tokens that were still there from the session's own last stream.
    own_tokens: int = 0
    #: Prompt tokens copied from another session with the same beginning.
    shared_tokens: int = 0
    #: Prompts that found some of either.
    own_hits: int = 0
    shared_hits: int = 0
    #: Slots of ended streams dropped because others needed the room.
    dropped: int = 0
    #: Slots of ended streams whose time was over.
    expired: int = 0
    #: Slots of open streams emptied because others needed the room; rebuilt when it is their turn.
    emptied: int = 0


class Leases(Generic[S]):
    """Hands out slots and keeps those of streams that ended.

    Args:
        store: makes and frees slots.
        lease_s: how long an unused slot is kept, in seconds.
    """

    def __init__(self, store: SlotStore[S], lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._parked: OrderedDict[str, _Parked[S]] = OrderedDict()
        self._index: PrefixIndex[S] = PrefixIndex()
        self.counts = LeaseCounts()

    @property
    def num_parked(self) -> int:
        """Slots waiting for their session."""
        return len(self._parked)

    def take(self, session_id: str, ids: Sequence[int], capacity: int) -> tuple[S, int]:
        """A slot for these ids, and how many of them it already holds.

        Args:
            session_id: whose parked slot may be reused.
            ids: prompt and committed output; the last one always has to be fed.
            capacity: tokens it must be able to hold.

        Raises:
            OverloadedError: no room, even after dropping every parked slot.
        """
        parked = self._parked.pop(session_id, None)
        if parked is None:
            return self._open(capacity), 0
        slot = parked.slot
        cached = common_prefix(slot.ids, ids[:-1])
        slot.truncate(cached)
        slot.capacity = capacity
        self._index.forget(slot)  # from here on it may hold another text
        self.counts.own_tokens += cached
        self.counts.own_hits += cached > 0
        return slot, cached

    def share(self, slot: S, ids: Sequence[int], owner: str) -> int:
        """Copy the beginning of a prompt from another session of the same owner, where that is longer.

        Only between forward passes. The copy has the bits a forward pass would have written, as far as
        the self-test at start says so.

        Returns:
            How many tokens the slot holds now.
        """
        source, length = self._index.longest(ids, owner)
        if source is None or source is slot or length < len(slot.ids) + PIECE:
            return slot.length
        try:
            slot.truncate(0)
            self._store.inherit(slot, source, length)
            self.counts.shared_tokens += length
            self.counts.shared_hits += 1
        except OverloadedError:
            pass  # then it is read anew, when there is room
        return slot.length

    def note(self, slot: S, owner: str) -> None:
        """Remember what a slot holds, committed tokens only, for others with the same beginning."""
        self._index.note(slot, owner)

    def empty(self, slot: S) -> None:
        """Drop an open stream's keys and values; its next forward passes build them again."""
        self._index.forget(slot)
        self._store.empty(slot)
        self.counts.emptied += 1

    def _open(self, capacity: int) -> S:
        while True:
            try:
                return self._store.open(capacity)
            except OverloadedError:
                if not self.drop_oldest():
                    raise

    def drop_oldest(self) -> bool:
        """Free the slot parked longest ago; False when none is parked."""
        if not self._parked:
            return False
        self._drop(next(iter(self._parked)))
        self.counts.dropped += 1
        return True

    def park(self, session_id: str, slot: S, now: float) -> None:
        """Keep a slot until its lease ends; a second slot of the same session replaces the first."""
        if session_id in self._parked:
            self._drop(session_id)
        self._parked[session_id] = _Parked(slot, now + self._lease_s)

    def expire(self, now: float) -> None:
        """Free every slot whose lease is over."""
        for session_id in [key for key, parked in self._parked.items() if parked.expires_at <= now]:
            self._drop(session_id)
            self.counts.expired += 1

    def _drop(self, session_id: str) -> None:
        slot = self._parked.pop(session_id).slot
        self._index.forget(slot)
        self._store.release(slot)
