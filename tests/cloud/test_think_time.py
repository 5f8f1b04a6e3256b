"""When an edge's next draft is due."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.think_time import Smoothed, ThinkTime


def test_nothing_is_expected_of_an_edge_that_never_drafted() -> None:
    think = ThinkTime()
    assert think.next_draft() is None
    think.drafted(1.0)
    assert think.next_draft() is None, "a draft that answers no verdict tells nothing"


def test_only_the_first_draft_behind_a_verdict_tells_how_long_it_takes() -> None:
    think = ThinkTime()
    think.answered(10.0)
    think.drafted(10.5)
    think.drafted(19.0)
    assert think.own.mean_s == 0.5


@given(st.floats(0.01, 5.0))
def test_an_edge_as_regular_as_a_clock_is_soon_expected_to_the_moment(took: float) -> None:
    think = ThinkTime()
    for turn in range(60):
        think.answered(100.0 * turn)
        think.drafted(100.0 * turn + took)
    think.answered(0.0)
    due = think.next_draft()
    assert due is not None
    assert abs(due.usually - took) < 1e-6
    assert due.latest - due.usually < 1e-3 * took


def test_an_irregular_edge_is_given_more_time() -> None:
    think = ThinkTime()
    for turn, took in enumerate([0.1, 0.5] * 20):
        think.answered(10.0 * turn)
        think.drafted(10.0 * turn + took)
    due = think.next_draft()
    assert due is not None
    assert due.latest - due.usually > 0.2


def test_of_a_newcomer_is_expected_what_is_usual_and_then_what_it_does_itself() -> None:
    usual = Smoothed()
    old, new = ThinkTime(usual=usual), ThinkTime(usual=usual)
    old.answered(1.0)
    old.drafted(1.2)
    new.answered(5.0)
    due = new.next_draft()
    assert due is not None
    assert abs(due.usually - 5.2) < 1e-9
    new.drafted(5.6)
    new.answered(7.0)
    due = new.next_draft()
    assert due is not None
    assert abs(due.usually - 7.6) < 1e-9, "its own figure, once there is one"
