"""What a pass takes is found from passes, and stays finite and non-negative on whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.step_cost import PassShape, StepCost


def learnt(a: float, b: float, c: float, shapes: list[PassShape]) -> StepCost:
    cost = StepCost()
    for shape in shapes:
        cost.observe(shape, a + b * shape.rows + c * shape.pairs)
    return cost


SHAPES = [
    PassShape.of([(past, new)]) for past, new in [(0, 1), (10, 6), (500, 17), (90, 200), (4000, 8), (7, 3)]
]


@given(st.floats(1e-3, 1.0), st.floats(1e-5, 1e-2), st.floats(1e-9, 1e-6))
def test_a_linear_cost_is_found(a: float, b: float, c: float) -> None:
    cost = learnt(a, b, c, SHAPES * 3)
    unseen = PassShape.of([(100, 5), (3000, 40)])
    assert cost.predict(unseen) == pytest.approx(a + b * unseen.rows + c * unseen.pairs, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 8000), st.floats(0.0, 100.0)), max_size=30))
def test_any_history_gives_finite_non_negative_figures(history: list[tuple[int, int, float]]) -> None:
    cost = StepCost()
    for new, past, seconds in history:
        cost.observe(PassShape.of([(past, new)]), seconds)
    for shape in SHAPES:
        assert 0 <= cost.predict(shape) < float("inf")
    assert min(cost.fixed_s(3), cost.row_s) >= 0
    assert 0 <= cost.affordable(100, 0.1, 512) <= 512


def test_what_each_session_takes_is_told_from_what_each_token_takes() -> None:
    cost = StepCost()
    for sessions in (1, 2, 4, 8, 16):
        for new in (1, 4, 6, 9):
            shape = PassShape.of([(100, new)] * sessions)
            cost.observe(shape, 0.05 + 0.0014 * shape.rows + 0.003 * sessions)
    assert cost.row_s == pytest.approx(0.0014, rel=0.02)
    assert cost.fixed_s(10) == pytest.approx(0.08, rel=0.02)


def test_a_service_that_saw_one_session_expects_no_more_of_two() -> None:
    cost = learnt(0.05, 0.001, 0.0, SHAPES * 3)
    assert cost.fixed_s(2) == pytest.approx(0.05, rel=0.02)


def test_nothing_is_predicted_before_there_is_evidence() -> None:
    cost = learnt(0.05, 0.001, 0.0, SHAPES[:3])
    assert not cost.known
    assert cost.predict(SHAPES[0]) == 0
    assert cost.affordable(0, 0.1, 512) == 512


@given(st.integers(0, 8000), st.floats(1e-3, 0.5))
def test_what_is_affordable_fits_and_one_more_does_not(past: int, seconds: float) -> None:
    cost = learnt(0.05, 1e-3, 1e-7, SHAPES * 3)
    base = cost.predict(PassShape(0, 0))
    n = cost.affordable(past, seconds, 100_000)
    # The fit is exact but for the little weight on zero.
    assert cost.predict(PassShape.of([(past, n)])) - base <= seconds * 1.001
    assert cost.predict(PassShape.of([(past, n + 1)])) - base >= seconds * 0.999
