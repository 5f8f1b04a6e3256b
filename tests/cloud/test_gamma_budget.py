"""The chosen lengths yield the most tokens a second of all there are."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.gamma_budget import choose_lengths


def rate(survivals: list[list[float]], lengths: tuple[int, ...], fixed: float, row: float) -> float:
    gain = len(survivals) + sum(sum(s[:n]) for s, n in zip(survivals, lengths, strict=True))
    return gain / (fixed + row * (len(survivals) + sum(lengths)))


falling = st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda chances: sorted(chances, reverse=True))


@given(st.lists(falling, min_size=1, max_size=4), st.floats(0.0, 1.0), st.floats(1e-4, 0.1))
def test_no_other_lengths_yield_more(survivals: list[list[float]], fixed: float, row: float) -> None:
    chosen = tuple(choose_lengths(survivals, fixed, row))
    best = max(
        rate(survivals, lengths, fixed, row) for lengths in product(*(range(len(s) + 1) for s in survivals))
    )
    assert rate(survivals, chosen, fixed, row) == pytest.approx(best)


def test_where_rows_cost_nothing_all_are_verified() -> None:
    assert choose_lengths([[0.9, 0.5], [], [0.1]], 0.05, 0.0) == [2, 0, 1]


def test_the_likelier_block_comes_first() -> None:
    assert choose_lengths([[0.9, 0.8, 0.7], [0.2, 0.1]], 0.001, 0.01) == [0, 0]
    assert choose_lengths([[0.9, 0.8, 0.7], [0.2, 0.1]], 0.02, 0.01) == [3, 0]
