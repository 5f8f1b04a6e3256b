"""The coupled verdict and the mean length of a round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol.acceptance import expected_tokens, verify_coupled


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), min_size=13, max_size=13))
def test_accepts_the_common_prefix_and_asks_for_no_more(draft: list[int], target: list[int]) -> None:
    asked: list[int] = []

    def target_token(offset: int) -> int:
        asked.append(offset)
        return target[offset]

    accepted, token = verify_coupled(draft, target_token)
    assert draft[:accepted] == target[:accepted]
    assert accepted == len(draft) or draft[accepted] != target[accepted]
    assert token == target[accepted]
    assert asked == list(range(accepted + 1))


@pytest.mark.parametrize(
    ("alpha", "gamma", "expected"), [(0.0, 5, 1.0), (1.0, 5, 6.0), (0.5, 1, 1.5), (0.8, 4, 3.3616)]
)
def test_expected_tokens_of_a_round(alpha: float, gamma: int, expected: float) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx(expected)
