"""How far two token lists agree."""

from __future__ import annotations

from collections.abc import Sequence

_CHUNK = 512


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix.

    Compares chunks, which runs at C speed, and looks into the first one that differs.
    """
    size = min(len(one), len(other))
    for start in range(0, size, _CHUNK):
        # Lists, because a list never equals a tuple.
        left, right = list(one[start : start + _CHUNK]), list(other[start : start + _CHUNK])
        if left != right:
            return start + _within_chunk(left, right)
    return size


def _within_chunk(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
