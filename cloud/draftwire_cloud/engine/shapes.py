"""Which tensor shapes the engine lets the kernels see."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

import torch


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``n``."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class ShapePolicy:
    """Padding that makes a token's result independent of what shares its forward pass.

    Matrix kernels are picked by shape, and different kernels add in different orders. Padding every
    shape to one of a class that adds in the same order makes block verification and one-at-a-time
    decoding agree in every bit.

    Attributes:
        query_multiple: a session's query rows are padded to a multiple of this.
        kv_multiple: a session's key/value view is padded to a multiple of this: the CPU attention
            kernel walks keys in blocks of 512, and a shorter last block adds differently.
        row_floor: fewest packed rows of a forward pass.
        row_multiple: packed rows below ``row_multiple_below`` are rounded up to a multiple of this.
        row_multiple_below: see ``row_multiple``; 0 turns the rounding off.
        row_counts: when not empty, the packed row counts known to agree, ascending; a pass is padded
            to the next of them (and not at all beyond the last).
    """

    query_multiple: int = 8
    kv_multiple: int = 512
    row_floor: int = 1
    row_multiple: int = 1
    row_multiple_below: int = 0
    row_counts: tuple[int, ...] = ()

    @classmethod
    def off(cls) -> Self:
        """No padding at all: fastest for one row, but results depend on what shares the pass."""
        return cls(query_multiple=1, kv_multiple=1)

    @classmethod
    def plain(cls, dtype: torch.dtype) -> Self:
        """For torch's own linear layers.

        Measured on x86 with AVX2 and with AVX-512: float32 (MKL) agrees at every multiple of 4 and at
        every count from 12 on; bf16 from 2 rows on.
        """
        if dtype == torch.float32:
            return cls(row_multiple=4, row_multiple_below=12)
        return cls(row_floor=2)

    def rows(self, n: int) -> int:
        """Packed rows (or kept rows of the output layer) for ``n`` real ones."""
        n = max(n, self.row_floor)
        if n < self.row_multiple_below:
            n = round_up(n, self.row_multiple)
        at = bisect_left(self.row_counts, n)
        return self.row_counts[at] if at < len(self.row_counts) else n

    def queries(self, n: int) -> int:
        """Query rows of one session for ``n`` new tokens."""
        return round_up(n, self.query_multiple)

    def keys(self, n: int) -> int:
        """Key/value rows of one session that holds ``n`` tokens, new ones included."""
        return round_up(n, self.kv_multiple)
