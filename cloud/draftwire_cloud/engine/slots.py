"""Keys and values of every session: slots cut from one byte budget."""

from collections.abc import Sequence
from threading import RLock

import numpy as np
import torch

from draftwire_cloud.engine.errors import ContextOverflowError, OutOfSlotsError
from draftwire_cloud.engine.layout import KvLayout, LayerShape

GROW_TOKENS = 512
"""A slot grows in steps of this many tokens. A multiple of every ``kv_multiple`` in use, so that the
padded view of a slot always lies inside its allocation."""


class Slot:
    """One session's keys and values, and the ids of the tokens they belong to.

    Rows at and beyond ``length`` are scratch: a forward pass writes there first and the ids follow only
    when it has succeeded, so a failed pass leaves the slot as it was.

    Attributes:
        ids: tokens whose keys and values are held, in order.
        capacity: most tokens this slot may hold; costs nothing by itself, so it can be changed at any time.
        kv: layer index -> ``[2, Hkv, allocated, D]``, keys first.
        allocated: tokens there is memory for; grows in steps, never shrinks.
    """

    __slots__ = ("allocated", "capacity", "ids", "is_open", "kv")

    def __init__(self, capacity: int) -> None:
        self.ids: list[int] = []
        self.capacity = capacity
        self.allocated = 0
        self.kv: dict[int, torch.Tensor] = {}
        self.is_open = True

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.ids)

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens. Nothing is copied: the rows behind them become scratch.

        Raises:
            ValueError: unless ``0 <= n <= length``.
        """
        if not 0 <= n <= self.length:
            raise ValueError(f"cannot cut a slot of {self.length} tokens back to {n}")
        del self.ids[n:]

    def write(self, layer: int, past: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put keys and values of new tokens behind the first ``past`` ones.

        Args:
            layer: layer index.
            past: tokens in front of the new ones.
            k: ``[Hkv, n, D]``.
            v: ``[Hkv, n, D]``.
        """
        rows = slice(past, past + k.shape[1])
        self.kv[layer][0, :, rows] = k
        self.kv[layer][1, :, rows] = v

    def view(self, layer: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the first ``n`` rows, each ``[1, Hkv, n, D]``; scratch rows included."""
        kv = self.kv[layer][:, None, :, :n]
        return kv[0], kv[1]


class SlotStore:
    """Opens, grows and releases slots within a byte budget.

    Thread-safe: streams open and release slots on the event loop while a step grows others on its thread.

    Args:
        layout: what one token needs.
        budget_bytes: most bytes all slots together may allocate.
    """

    def __init__(self, layout: KvLayout, budget_bytes: int) -> None:
        self.layout = layout
        self.budget_bytes = budget_bytes
        self._open: set[Slot] = set()
        self._lock = RLock()

    @property
    def used_bytes(self) -> int:
        """Bytes allocated for all open slots."""
        with self._lock:
            return sum(slot.allocated for slot in self._open) * self.layout.bytes_per_token

    @property
    def n_open(self) -> int:
        """Number of open slots."""
        return len(self._open)

    def open(self, capacity: int) -> Slot:
        """A new empty slot with memory for its first step.

        Args:
            capacity: most tokens the slot may ever hold; memory is only taken as it fills.

        Raises:
            ValueError: unless ``capacity`` is positive.
            OutOfSlotsError: when not even the first step fits the budget.
        """
        if capacity < 1:
            raise ValueError(f"a slot needs a capacity of at least 1 token, not {capacity}")
        slot = Slot(capacity)
        with self._lock:
            self._open.add(slot)
            try:
                self.reserve([(slot, 1)])
            except OutOfSlotsError:
                self._open.discard(slot)
                raise
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot's memory back. Releasing twice does nothing."""
        with self._lock:
            self._open.discard(slot)
            slot.is_open = False
            slot.ids.clear()
            slot.kv.clear()
            slot.allocated = 0

    def reserve(self, wanted: Sequence[tuple[Slot, int]]) -> None:
        """Make room in each slot for the number of tokens named beside it; all of them or none.

        Raises:
            ValueError: when a slot is not open here.
            ContextOverflowError: when a slot would exceed its capacity.
            OutOfSlotsError: when the budget does not allow it.
        """
        with self._lock:
            self._reserve(wanted)

    def _reserve(self, wanted: Sequence[tuple[Slot, int]]) -> None:
        steps = [(slot, self._step_size(slot, n)) for slot, n in wanted]
        extra = sum(size - slot.allocated for slot, size in steps) * self.layout.bytes_per_token
        if extra and self.used_bytes + extra > self.budget_bytes:
            raise OutOfSlotsError(
                f"keys and values need {extra} more bytes, but {self.used_bytes} of {self.budget_bytes} "
                f"are taken by {sum(slot.allocated > 0 for slot in self._open)} open slots"
            )
        for slot, size in steps:
            if size > slot.allocated:
                self._grow(slot, size)

    def _step_size(self, slot: Slot, n: int) -> int:
        """Tokens to have memory for so that ``n`` fit, in whole steps."""
        if slot not in self._open:
            raise ValueError("the slot is not open in this store")
        if n > slot.capacity:
            raise ContextOverflowError(f"{n} tokens do not fit a slot of {slot.capacity}")
        return max(slot.allocated, -(-n // GROW_TOKENS) * GROW_TOKENS)

    def _grow(self, slot: Slot, size: int) -> None:
        """Move a slot to larger buffers; values are copied as they are, so results do not change."""
        grown = {index: self._buffer(shape, size) for index, shape in self.layout.layers.items()}
        for index, old in slot.kv.items():
            grown[index][:, :, : slot.length] = old[:, :, : slot.length]
        slot.kv = grown
        slot.allocated = size

    def _buffer(self, shape: LayerShape, size: int) -> torch.Tensor:
        """Zeros ``[2, Hkv, size, D]``.

        Zeros and not ``empty``: masked rows are multiplied by 0, and 0 times a stray NaN is NaN. On the
        CPU they come from numpy, whose zero pages are only committed when first written.
        """
        dims = (2, shape.n_heads, size, shape.head_dim)
        dtype, device = self.layout.dtype, self.layout.device
        if device.type != "cpu":
            return torch.zeros(dims, dtype=dtype, device=device)
        raw = np.zeros(int(np.prod(dims)) * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).view(dims)
