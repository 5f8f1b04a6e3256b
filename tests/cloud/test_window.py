"""Waiting only where it pays, and never for long."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.window import Expected, wait_until

seconds = st.floats(0.0, 2.0)
drafts = st.lists(
    st.builds(lambda at, late: Expected(1.0 + at, 1.0 + at + late), seconds, seconds), max_size=8
)


def test_an_idle_service_never_waits() -> None:
    assert wait_until(10.0, 1, [], 0.2) is None
    assert wait_until(10.0, 0, [Expected(10.01, 10.02)], 0.2) is None


def test_a_draft_that_is_about_to_come_is_waited_for() -> None:
    until = wait_until(10.0, 2, [Expected(10.01, 10.02), Expected(14.0, 15.0)], 0.2)
    assert until == 10.02


def test_one_that_comes_too_late_to_pay_or_is_overdue_is_not() -> None:
    assert wait_until(10.0, 3, [Expected(10.06, 10.07)], 0.2) is None, "4 times 60 ms is more than the pass"
    assert wait_until(10.0, 1, [Expected(9.9, 9.99)], 0.2) is None, "it should have been here long ago"


def test_many_who_come_together_are_waited_for_where_one_of_them_is_not() -> None:
    one = Expected(10.06, 10.07)
    assert wait_until(10.0, 8, [one], 0.2) is None
    assert wait_until(10.0, 8, [one] * 8, 0.2) == 10.07


def test_an_edge_that_never_comes_holds_nobody_up_again_and_again() -> None:
    never, waited = Expected(10.0, 11.0), 0.0
    for turn in range(100):
        now = 10.01 + 0.0101 * turn
        until = wait_until(now, 10, [never], 0.1)
        waited += 0.0 if until is None else until - now
    assert waited < 0.03


@given(st.integers(0, 20), drafts, seconds)
def test_no_wait_costs_more_than_it_saves(ready: int, expected: list[Expected], pass_s: float) -> None:
    now = 2.0
    until = wait_until(now, ready, expected, pass_s)
    if until is None:
        return
    came = sum(one.latest > now and one.usually <= until for one in expected)
    assert came
    assert ready * (until - now) <= came * (pass_s - (until - now)) + 1e-9, "saved for who came by then"
    assert until <= now + pass_s
