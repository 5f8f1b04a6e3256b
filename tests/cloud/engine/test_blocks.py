import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.blocks import Blocks


def test_the_lowest_run_that_fits_is_taken() -> None:
    blocks = Blocks(10)
    assert [blocks.take(n) for n in (2, 3, 1)] == [0, 2, 5]
    blocks.give(0, 2)
    assert blocks.take(3) == 6
    assert blocks.take(2) == 0
    assert blocks.take(2) is None


def test_a_run_grows_only_into_free_neighbours() -> None:
    blocks = Blocks(6)
    assert [blocks.take(n) for n in (2, 1)] == [0, 2]
    assert not blocks.extend(2, 1)
    assert blocks.extend(3, 3)
    assert not blocks.extend(6, 1)
    assert blocks.n_free == 0


@pytest.mark.parametrize(("start", "n"), [(0, 1), (1, 3), (4, 1), (5, 1), (1, 0)])
def test_what_is_not_taken_cannot_be_given_back(start: int, n: int) -> None:
    blocks = Blocks(5)
    assert blocks.take(3) == 0
    blocks.give(0, 1)
    with pytest.raises(ValueError, match="not all taken"):
        blocks.give(start, n)


@given(st.integers(0, 12), st.lists(st.tuples(st.sampled_from("tge"), st.integers(0, 9), st.integers(1, 5))))
def test_every_block_is_free_or_taken_once(n: int, steps: list[tuple[str, int, int]]) -> None:
    blocks, taken = Blocks(n), dict[int, int]()
    for step, which, size in steps:
        owned = list(taken)
        if step == "t":
            free_before = blocks.n_free
            start = blocks.take(size)
            if start is None:
                assert blocks.n_free == free_before
            else:
                taken[start] = size
        elif owned and step == "e":
            start = owned[which % len(owned)]
            if blocks.extend(start + taken[start], size):
                taken[start] += size
        elif owned:
            start = owned[which % len(owned)]
            blocks.give(start, taken.pop(start))
        covered = [b for start, size in taken.items() for b in range(start, start + size)]
        assert len(set(covered)) == len(covered)
        assert all(0 <= b < n for b in covered)
        assert blocks.n_free == n - len(covered)
    for start, size in taken.items():
        blocks.give(start, size)
    assert blocks.take(n) == 0 if n else blocks.take(1) is None
