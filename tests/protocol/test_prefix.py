"""The longest common prefix of two token lists."""

from collections.abc import Sequence

import pytest

from draftwire_protocol.prefix import common_prefix


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([], [], 0),
        ([1], [], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], (1, 2), 2),
        ([1, 2, 3, 4], [1, 2, 9, 4], 2),
    ],
)
def test_common_prefix(ours: list[int], theirs: Sequence[int], expected: int) -> None:
    assert common_prefix(ours, theirs) == expected


def test_common_prefix_finds_every_place() -> None:
    ours = list(range(100))
    for place in range(100):
        assert common_prefix(ours, [*ours[:place], -1, *ours[place + 1 :]]) == place
