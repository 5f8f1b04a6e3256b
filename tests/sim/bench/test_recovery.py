"""A text has recovered when it is nowhere slower than the cloud alone any more."""

from itertools import accumulate

import pytest

from draftwire_sim.bench.recovery import PACE_TOKENS, recovery_s


def times(*gaps_s: float) -> list[float]:
    return list(accumulate(gaps_s))


def test_a_steady_text_has_nothing_to_recover_from() -> None:
    assert recovery_s(times(*[0.05] * 100), 2.0, 0.05) == 0.0


def test_it_counts_until_the_last_slow_token() -> None:
    after_change = [0.05] * 10 + [0.5] + [0.05] * 60
    found = recovery_s(times(*[0.05] * 40, *after_change), 2.0, 0.05)
    assert found == pytest.approx(10 * 0.05 + 0.5)


def test_a_stall_at_the_change_itself_counts() -> None:
    found = recovery_s(times(*[0.05] * 40, 5.0, *[0.05] * 60), 2.01, 0.05)
    assert found == pytest.approx(7.0 - 2.01 - 0.05)


@pytest.mark.parametrize(
    "gaps_s", [[0.05] * 40 + [0.06] * 60, [0.05] * (40 + PACE_TOKENS // 2), [0.05] * 10, []]
)
def test_one_that_stays_slow_or_ends_too_soon_has_not(gaps_s: list[float]) -> None:
    assert recovery_s(times(*gaps_s), 2.0, 0.05) is None


def test_a_faster_text_makes_no_later_one_good() -> None:
    assert recovery_s(times(*[0.05] * 40, *[0.01] * 40, *[0.08] * 40), 2.0, 0.05) is None
