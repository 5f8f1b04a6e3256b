"""Which tensor shapes the engine lets the kernels see."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self


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
            kernel walks keys in blocks of 512, and a shorter last block adds differently (32 to 256
            were tried and fail).
        row_counts: packed row counts known to agree, ascending. A pass, and the rows kept for the
            output layer, are padded to the next of them; beyond the last not at all.
    """

    query_multiple: int = 8
    kv_multiple: int = 512
    row_counts: tuple[int, ...] = ()

    @classmethod
    def off(cls) -> Self:
        """No padding at all: fastest for one row, but results depend on what shares the pass."""
        return cls(query_multiple=1, kv_multiple=1)

    @classmethod
    def for_gpu(cls) -> Self:
        """A guess for GPUs, where nothing could be measured yet: 16 rows cost what one does.

        The self-test at start says whether it holds.
        """
        return cls(query_multiple=16, row_counts=tuple(range(16, 257, 16)))

    def rows(self, n: int) -> int:
        """Packed rows (or kept rows of the output layer) for ``n`` real ones; at least 1."""
        n = max(n, 1)
        at = bisect_left(self.row_counts, n)
        return self.row_counts[at] if at < len(self.row_counts) else n

    def queries(self, n: int) -> int:
        """Query rows of one session for ``n`` new tokens."""
        return round_up(n, self.query_multiple)

    def keys(self, n: int) -> int:
        """Key/value rows of one session that holds ``n`` tokens, new ones included."""
        return round_up(n, self.kv_multiple)
