"""Waiting only where it pays, and never for long."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.window import wait_until

seconds = st.floats(0.0, 2.0)


def test_an_idle_service_never_waits() -> None:
    assert wait_until(10.0, 1, [], 0.2) is None
    assert wait_until(10.0, 0, [(9.99, 0.02)], 0.2) is None


def test_a_draft_that_is_about_to_come_is_waited_for() -> None:
    until = wait_until(10.0, 2, [(9.95, 0.06), (9.0, 5.0)], 0.2)
    assert until is not None
    assert 10.01 <= until <= 10.03


def test_one_that_comes_too_late_to_pay_or_is_overdue_is_not() -> None:
    assert wait_until(10.0, 3, [(9.95, 0.11)], 0.2) is None, "60 ms times 3 is more than the pass takes"
    assert wait_until(10.0, 1, [(9.8, 0.1)], 0.2) is None, "it should have been here long ago"


@given(st.integers(0, 20), st.lists(st.tuples(seconds, seconds), max_size=8), seconds)
def test_no_wait_costs_more_than_it_saves(
    ready: int, expected: list[tuple[float, float]], pass_s: float
) -> None:
    until = wait_until(2.0, ready, expected, pass_s)
    assert until is None or 2.0 <= until <= 2.0 + pass_s / (ready + 1)
