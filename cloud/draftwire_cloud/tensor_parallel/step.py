"""A forward pass as rank 0 tells it to the others, and the ledger it is told from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from threading import Lock
from typing import NamedTuple

from draftwire_cloud.engine.layout import KvLayout
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot, SlotStore


class StepSpan(NamedTuple):
    """A `Span` with its slot's number."""

    slot: int
    #: Most tokens the slot may hold.
    capacity: int
    #: Tokens in front of the new ones.
    past: int
    ids: list[int]
    num_logits: int


class Step(NamedTuple):
    """What a rank does to its slots, in this order, and then runs."""

    released: list[int]
    #: Numbers and lengths of slots cut back since they were last told of.
    cut: list[tuple[int, int]]
    spans: list[StepSpan]


class LedgerStore(SlotStore):
    """Rank 0's slots, each with a number that the other ranks know it by.

    Slots change between steps, on the event loop; the others hear of it with the next step.

    Args:
        layout: what one token needs on this rank.
        budget_bytes: most bytes all slots together may allocate on each rank.
    """

    def __init__(self, layout: KvLayout, budget_bytes: int) -> None:
        super().__init__(layout, budget_bytes)
        self._count = count()
        self._ledger = Lock()
        self._numbers: dict[Slot, int] = {}
        #: Tokens the other ranks hold of each slot they have been told of.
        self._told: dict[Slot, int] = {}
        self._released: list[int] = []

    def open(self, capacity: int) -> Slot:
        """As `SlotStore.open`; other ranks open the slot when it is first used."""
        slot = super().open(capacity)
        with self._ledger:
            self._numbers[slot] = next(self._count)
        return slot

    def release(self, slot: Slot) -> None:
        """As `SlotStore.release`."""
        super().release(slot)
        with self._ledger:
            number = self._numbers.pop(slot, None)
            if number is not None and self._told.pop(slot, None) is not None:
                self._released.append(number)

    def step(self, spans: Sequence[Span]) -> Step:
        """The next step for the other ranks; call it for every step, and in order."""
        with self._ledger:
            released, self._released = self._released, []
            cut = []
            for slot, told in self._told.items():
                if (length := slot.length) < told:
                    cut.append((self._numbers[slot], length))
                    self._told[slot] = length
            return Step(released, cut, [self._tell(span) for span in spans])

    def _tell(self, span: Span) -> StepSpan:
        slot = span.slot
        self._told[slot] = slot.length + len(span.ids)
        return StepSpan(self._numbers[slot], slot.capacity, slot.length, list(span.ids), span.num_logits)
