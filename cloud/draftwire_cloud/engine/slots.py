"""Keys and values of every session: slots placed in one store of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock

from draftwire_cloud.engine.arena import BLOCK_TOKENS, Arena
from draftwire_cloud.engine.blocks import Blocks
from draftwire_cloud.engine.errors import ContextOverflowError, OutOfSlotsError
from draftwire_cloud.engine.layout import KvLayout

_ENDLESS = 1 << 30


class Slot:
    """One session's place in the KV store, and the ids of the tokens held there.

    Rows at and beyond ``length`` are scratch: a forward pass writes there first and the ids follow only
    when it has succeeded, so a failed pass leaves the slot as it was.

    Attributes:
        ids: tokens whose keys and values are held, in order.
        capacity: most tokens this slot may hold; costs nothing by itself, so it can be changed at any time.
        n_blocks: blocks it counts for.
        n_placed: blocks it has; fewer only until its next forward pass.
        start: the first of them; meaningless while it has none.
    """

    __slots__ = ("capacity", "ids", "is_open", "n_blocks", "n_placed", "start")

    def __init__(self, capacity: int) -> None:
        self.ids: list[int] = []
        self.capacity = capacity
        self.n_blocks = self.n_placed = self.start = 0
        self.is_open = True

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.ids)

    @property
    def first_row(self) -> int:
        """Row of its first token in the arena.

        Raises:
            ValueError: nothing was reserved for it yet.
        """
        if not self.n_placed:
            raise ValueError("the slot has no place in the KV store yet")
        return self.start * BLOCK_TOKENS

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens. Nothing is copied: the rows behind them become scratch.

        Raises:
            ValueError: unless ``0 <= n <= length``.
        """
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot cut a slot of {self.length} tokens back to {n}")
        del self.ids[n:]


@dataclass(slots=True)
class KvCounts:
    """What happened in the KV store since it was made."""

    #: Slots moved because their neighbour block was taken.
    moves: int = 0
    #: Times all slots were pushed together.
    compactions: int = 0
    #: Most blocks taken at once.
    peak_blocks: int = 0


class SlotStore:
    """Opens, grows, empties and releases slots within a byte budget.

    Thread-safe: streams open and release slots on the event loop while a step grows others on its thread.
    Only ``reserve`` and ``inherit`` touch keys and values, and only between forward passes.

    Args:
        layout: what one token needs.
        budget_bytes: most bytes all slots together may take.

    Raises:
        OutOfSlotsError: the budget does not hold one block.
    """

    def __init__(self, layout: KvLayout, budget_bytes: int) -> None:
        self.layout = layout
        self.budget_bytes = budget_bytes
        self._block_bytes = BLOCK_TOKENS * layout.bytes_per_token
        # A layout without layers has nothing to hold, and so room for everything.
        n_blocks = budget_bytes // self._block_bytes if self._block_bytes else _ENDLESS
        if not n_blocks:
            raise OutOfSlotsError(
                f"keys and values of {BLOCK_TOKENS} tokens take {self._block_bytes} bytes, more than the "
                f"memory for them all, {budget_bytes}; give the service more (--kv-memory-mib)"
            )
        self.arena = Arena(layout, n_blocks)
        self.counts = KvCounts()
        self._blocks = Blocks(n_blocks)
        self._n_blocks = n_blocks
        self._taken = 0
        self._open: set[Slot] = set()
        self._lock = RLock()

    @property
    def used_bytes(self) -> int:
        """Bytes all open slots count for."""
        return self._taken * self._block_bytes

    @property
    def n_taken_blocks(self) -> int:
        """Blocks all open slots count for."""
        return self._taken

    @property
    def n_free_blocks(self) -> int:
        """Blocks that nobody counts on."""
        return self._n_blocks - self._taken

    @property
    def free_tokens(self) -> int:
        """Tokens that still fit, in whole blocks."""
        return (self._n_blocks - self._taken) * BLOCK_TOKENS

    @property
    def n_open(self) -> int:
        """Number of open slots."""
        return len(self._open)

    def open(self, capacity: int) -> Slot:
        """A new empty slot; one block counts as its own from now on.

        Args:
            capacity: most tokens the slot may ever hold; memory is only taken as it fills.

        Raises:
            ValueError: unless ``capacity`` is positive.
            OutOfSlotsError: when not even one block is left.
        """
        if capacity < 1:
            raise ValueError(f"a slot needs a capacity of at least 1 token, not {capacity}")
        slot = Slot(capacity)
        with self._lock:
            self._count({slot: 1})
            self._open.add(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot's memory back. Releasing twice does nothing."""
        with self._lock:
            self.empty(slot)
            self._open.discard(slot)
            slot.is_open = False

    def empty(self, slot: Slot) -> None:
        """Drop a slot's keys and values and give its memory back; it stays open."""
        with self._lock:
            if slot.n_placed:
                self._blocks.give(slot.start, slot.n_placed)
            self._taken -= slot.n_blocks
            slot.n_blocks = slot.n_placed = 0
            slot.ids.clear()

    def inherit(self, slot: Slot, source: Slot, n: int) -> None:
        """Make an empty slot hold the first ``n`` tokens of another one; they are copied.

        Raises:
            ValueError: the slot is not empty, or the source does not hold that many.
            OutOfSlotsError, ContextOverflowError: as for `reserve`.
        """
        if slot.ids or n > source.length:
            raise ValueError(f"cannot inherit {n} of {source.length} tokens behind {slot.length}")
        self.reserve([(slot, n)])
        self.arena.copy(source.first_row, slot.first_row, n)
        slot.ids.extend(source.ids[:n])

    def reserve(self, wanted: Sequence[tuple[Slot, int]]) -> None:
        """Make room in each slot for the number of tokens named beside it; all of them or none.

        Raises:
            ValueError: when a slot is not open here.
            ContextOverflowError: when a slot would exceed its capacity.
            OutOfSlotsError: when the budget does not allow it.
        """
        with self._lock:
            self._count({slot: self._size(slot, n) for slot, n in wanted})
            for slot, _ in wanted:
                if slot.n_placed < slot.n_blocks:
                    self._place(slot)

    def _size(self, slot: Slot, n: int) -> int:
        """Blocks for ``n`` tokens; a slot never shrinks."""
        if slot not in self._open:
            raise ValueError("the slot is not open in this store")
        if n > slot.capacity:
            raise ContextOverflowError(f"{n} tokens do not fit a slot of {slot.capacity}")
        return max(slot.n_blocks, -(-n // BLOCK_TOKENS), 1)

    def _count(self, sizes: dict[Slot, int]) -> None:
        """Let slots count for so many blocks from now on."""
        extra = sum(size - slot.n_blocks for slot, size in sizes.items())
        if self._taken + extra > self._n_blocks:
            raise OutOfSlotsError(
                f"keys and values need {extra * self._block_bytes} more bytes, but {self.used_bytes} of "
                f"{self.budget_bytes} are taken by {sum(slot.n_blocks > 0 for slot in self._open)} open slots"
            )
        self._taken += extra
        self.counts.peak_blocks = max(self.counts.peak_blocks, self._taken)
        for slot, size in sizes.items():
            slot.n_blocks = size

    def _place(self, slot: Slot) -> None:
        """Give a slot the blocks it counts for: behind its own, else elsewhere, else after making room."""
        end, missing = slot.start + slot.n_placed, slot.n_blocks - slot.n_placed
        if slot.n_placed and self._blocks.extend(end, missing):
            self._clear(end, missing)
        elif (start := self._blocks.take(slot.n_blocks)) is not None:
            self._clear(start, slot.n_blocks)
            if slot.n_placed:
                self.counts.moves += 1
                self.arena.copy(slot.first_row, start * BLOCK_TOKENS, slot.length)
                self._blocks.give(slot.start, slot.n_placed)
            slot.start = start
        else:
            self._compact(slot)
        slot.n_placed = slot.n_blocks

    def _compact(self, growing: Slot) -> None:
        """Push all slots together and put the growing one behind them: what is free is one run then."""
        self.counts.compactions += 1
        if growing.n_placed:
            self.arena.save(growing.first_row, growing.length)
        self._blocks = Blocks(self._n_blocks)
        others = (slot for slot in self._open if slot.n_placed and slot is not growing)
        for slot in sorted(others, key=lambda slot: slot.start):
            start = self._take(slot.n_placed)
            self.arena.copy(slot.first_row, start * BLOCK_TOKENS, slot.length)
            slot.start = start
        growing.start = self._take(growing.n_blocks)
        self._clear(growing.start, growing.n_blocks)
        if growing.n_placed:
            self.arena.restore(growing.start * BLOCK_TOKENS)

    def _take(self, n: int) -> int:
        """Neighbouring blocks that must be there."""
        start = self._blocks.take(n)
        if start is None:
            raise RuntimeError(f"no {n} blocks in a row, though the budget has room")
        return start

    def _clear(self, start: int, n: int) -> None:
        self.arena.clear(start * BLOCK_TOKENS, n * BLOCK_TOKENS)
