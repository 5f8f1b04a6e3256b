"""Which blocks of the KV store are free: runs of neighbours, the lowest first. Pure."""

from __future__ import annotations

from bisect import bisect_left


class Blocks:
    """Hands out runs of neighbouring blocks.

    The lowest run that fits is taken (first fit), so sessions lie side by side where they can and the
    memory touched stays small.

    Args:
        n: blocks there are.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        # Free runs as (start, end), ascending, never touching each other.
        self._runs: list[tuple[int, int]] = [(0, n)] if n else []

    @property
    def n_free(self) -> int:
        """Free blocks, side by side or not."""
        return sum(end - start for start, end in self._runs)

    def take(self, n: int) -> int | None:
        """The start of ``n`` neighbouring blocks, taken now; None where no run is that long."""
        for at, (start, end) in enumerate(self._runs):
            if end - start >= n:
                self._replace(at, start + n, end)
                return start
        return None

    def extend(self, end: int, n: int) -> bool:
        """Take the ``n`` blocks from ``end`` on, all or none."""
        at = bisect_left(self._runs, (end, end))
        if at == len(self._runs) or self._runs[at][0] != end or self._runs[at][1] < end + n:
            return False
        self._replace(at, end + n, self._runs[at][1])
        return True

    def give(self, start: int, n: int) -> None:
        """Give ``n`` blocks from ``start`` on back.

        Raises:
            ValueError: one of them is free or does not exist.
        """
        end = start + n
        at = bisect_left(self._runs, (start, start))
        before = self._runs[at - 1] if at else (0, 0)
        after = self._runs[at] if at < len(self._runs) else (self.n, self.n)
        if n < 1 or before[1] > start or after[0] < end:
            raise ValueError(f"blocks {start} to {end} are not all taken")
        first, last = at, at
        if at and before[1] == start:
            first, start = at - 1, before[0]
        if at < len(self._runs) and after[0] == end:
            last, end = at + 1, after[1]
        self._runs[first:last] = [(start, end)]

    def _replace(self, at: int, start: int, end: int) -> None:
        self._runs[at : at + 1] = [(start, end)] if start < end else []
