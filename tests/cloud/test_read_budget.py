"""How much of a pass prompts may take from those who wait for verdicts."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.read_budget import LEAST_SHARE, SLOWEST, read_seconds

seconds = st.floats(1e-3, 2.0)
heads = st.integers(1, 64)


@given(seconds, st.floats(0.0, 1.0), heads, heads)
def test_verdicts_stay_quick_and_prompts_are_read(
    verify_s: float, alone: float, readers: int, verifiers: int
) -> None:
    alone_s = alone * verify_s
    extra = read_seconds(verify_s, alone_s, readers, verifiers)
    assert extra >= LEAST_SHARE * verify_s
    assert verify_s + extra <= max(SLOWEST * alone_s, (1 + LEAST_SHARE) * verify_s) + 1e-9


@given(seconds, seconds, heads)
def test_one_long_prompt_takes_no_more_of_a_pass_than_all_verdicts(
    verify_s: float, alone_s: float, verifiers: int
) -> None:
    assert read_seconds(verify_s, alone_s, 1, verifiers) <= verify_s


def test_many_who_read_beside_few_who_draft_get_as_much_for_each() -> None:
    assert read_seconds(0.01, 1.0, 12, 4) == 0.03


def test_a_service_that_is_slow_already_reads_little() -> None:
    assert read_seconds(0.35, 0.1, 1, 16) == LEAST_SHARE * 0.35
