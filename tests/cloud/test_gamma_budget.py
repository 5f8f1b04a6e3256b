"""The chosen lengths yield the most tokens a second of all there are."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.gamma_budget import budget, choose_lengths, survival_bar


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


chances = st.floats(0.01, 0.99)


@given(
    st.lists(falling, min_size=1, max_size=4), st.floats(1e-3, 1.0), st.floats(1e-4, 0.1), st.floats(0.0, 1.0)
)
def test_the_bar_is_where_one_more_token_changes_nothing(
    survivals: list[list[float]], fixed: float, row: float, survival: float
) -> None:
    bar = survival_bar(survivals, fixed, row)
    more = [[*survivals[0], survival], *survivals[1:]]
    before = rate(survivals, tuple(map(len, survivals)), fixed, row)
    after = rate(more, tuple(map(len, more)), fixed, row)
    if abs(survival - bar) > 1e-9:
        assert (after > before) == (survival > bar)


@given(chances, st.floats(1e-6, 0.999))
def test_the_budget_ends_with_the_last_token_above_the_bar(acceptance: float, bar: float) -> None:
    most = budget(acceptance, bar)
    assert most == 1 or acceptance**most > bar * (1 - 1e-9)
    assert most == 32 or acceptance ** (most + 1) <= bar * (1 + 1e-9)


def test_alone_in_the_pass_there_is_no_budget_and_one_token_is_always_left() -> None:
    assert budget(0.8, 0.0) == 0
    assert budget(0.8, 1.5) == 1
    assert budget(0.8, 0.45) == 3
