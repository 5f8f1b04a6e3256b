"""The scripted drafts: the target's text, wrong as often as asked, the same for every arm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_sim.bench.capacity.script import Script

N_TOKENS = 11
TRUTHS = st.lists(st.integers(0, N_TOKENS - 1), min_size=1, max_size=60)


@given(TRUTHS, st.text(max_size=5))
def test_always_right_is_the_text_and_never_right_has_no_token_of_it(truth: list[int], seed: str) -> None:
    assert Script(truth, 1.0, N_TOKENS, seed).guesses == tuple(truth)
    wrong = Script(truth, 0.0, N_TOKENS, seed).guesses
    assert all(guess != token for guess, token in zip(wrong, truth, strict=True))
    assert all(0 <= guess < N_TOKENS for guess in wrong)


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_the_share_of_right_guesses_is_the_one_asked_for(acceptance: float) -> None:
    truth = [i % N_TOKENS for i in range(10_000)]
    guesses = Script(truth, acceptance, N_TOKENS, "a").guesses
    right = sum(guess == token for guess, token in zip(guesses, truth, strict=True)) / len(truth)
    # Four standard deviations of the mean are 0.02.
    assert abs(right - acceptance) < 0.02


def test_wrong_guesses_are_every_other_token() -> None:
    assert set(Script([3] * 500, 0.0, N_TOKENS, "a").guesses) == set(range(N_TOKENS)) - {3}


def test_a_seed_draws_the_same_guesses_again_and_another_one_others() -> None:
    truth = list(range(N_TOKENS)) * 5
    first, again, other = (Script(truth, 0.5, N_TOKENS, seed).guesses for seed in ("0/1/2", "0/1/2", "0/2/1"))
    assert first == again
    assert first != other


@given(TRUTHS, st.integers(0, 60), st.integers(1, 9))
def test_a_block_goes_on_where_the_text_ends_and_leaves_its_last_token(
    truth: list[int], written: int, gamma: int
) -> None:
    script = Script(truth, 0.5, N_TOKENS, "a")
    block = script.block(written, gamma)
    assert len(block) == max(0, min(gamma, len(truth) - 1 - written))
    assert block == script.guesses[written : written + len(block)]
