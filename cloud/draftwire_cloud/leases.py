"""KV slots between streams.

They are kept for a while, so that a reopened session or the next turn of a chat finds its prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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


@dataclass(slots=True)
class _Parked(Generic[S]):
    slot: S
    expires_at: float


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
        return slot, cached

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

    def _drop(self, session_id: str) -> None:
        self._store.release(self._parked.pop(session_id).slot)
