"""The guess from a row of logits."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftwire_edge.drafters.guess import REACH, SHORTLIST, draw_token, guess_token, top_probability
from draftwire_protocol.errors import DrafterError
from draftwire_protocol.noise import gumbel_noise, position_key
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.sampling import Float32Array, choose_token


def _settings() -> Iterator[SamplingParams]:
    for temperature, top_k, top_p, min_p in product((0.0, 0.3, 1.0, 3.0), (0, 5), (1.0, 0.8), (0.0, 0.1)):
        yield SamplingParams(temperature, top_k, top_p, min_p, seed=11)


def _model_like_row(seed: int, size: int) -> Float32Array:
    """Zipf's law: the id of rank r has probability ~ r^-2, so the best 256 ids hold 99.8 %."""
    ranks = np.random.default_rng(seed).permutation(size) + 1
    return (-2.0 * np.log(ranks)).astype(np.float32)


@settings(max_examples=300, deadline=None)
@given(
    arrays(np.float32, st.integers(1, SHORTLIST), elements=st.floats(-30, 30, width=32)),
    st.sampled_from(list(_settings())),
    st.integers(0, 10_000),
)
def test_small_rows_give_exactly_the_targets_choice(
    logits: Float32Array, params: SamplingParams, position: int
) -> None:
    assert guess_token(logits, params, position).token == choose_token(logits, params, position)


@pytest.mark.parametrize("params", list(_settings()))
def test_large_rows_nearly_always_agree_with_the_exact_choice(params: SamplingParams) -> None:
    rows = [_model_like_row(seed, 20_000) for seed in range(40)]
    agreed = sum(
        guess_token(row, params, i).token == choose_token(row, params, i) for i, row in enumerate(rows)
    )
    # At T = 3 the ids beyond the shortlist hold most of the probability: the price of the approximation.
    assert agreed >= 39 or (params.temperature == 3.0 and not params.top_k)


@settings(max_examples=200, deadline=None)
@given(arrays(np.float32, st.integers(1, 3000), elements=st.floats(-40, 40, width=32)))
def test_top_probability_is_the_softmax_of_the_best(logits: Float32Array) -> None:
    exact = 1.0 / np.exp(logits.astype(np.float64) - logits.max()).sum()
    found = guess_token(logits, SamplingParams(), 0).top_probability
    assert exact * (1 - 1e-5) <= found <= exact * (1 + len(logits) * math.exp(-REACH)) + 1e-6
    assert 0.0 < found <= 1.0


def test_top_probability_of_equal_logits() -> None:
    assert top_probability(np.zeros(4, np.float32), 0.0) == pytest.approx(0.25)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(1000, np.float32)
    row[[400, 700]] = 5.0
    assert guess_token(row, SamplingParams(), 3).token == 400


def test_masked_ids_are_never_guessed() -> None:
    row = np.full(500, -np.inf, np.float32)
    row[77] = 1.0
    for params in _settings():
        assert guess_token(row, params, 1).token == 77


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_are_an_error(broken: float) -> None:
    row = _model_like_row(0, 1000)
    row[5] = broken
    with pytest.raises(DrafterError, match="logits are broken"):
        guess_token(row, SamplingParams(), 0)


@given(st.integers(0, 1000), st.sampled_from([0.5, 1.2, 3.0]), st.sampled_from([1, 40]))
def test_sharpening_scales_the_scores_of_the_ids_that_the_warpers_keep(
    seed: int, sharpness: float, top_k: int
) -> None:
    row, params = _model_like_row(seed, 200), SamplingParams(0.8, top_k=top_k, seed=seed)
    kept = np.sort(np.argsort(-row)[:top_k])
    scores = sharpness * row[kept].astype(np.float64) / 0.8
    perturbed = scores + gumbel_noise(position_key(seed, 7), kept)
    assert guess_token(row, params, 7, sharpness).token == kept[np.argmax(perturbed)]
    proposal = draw_token(row, params, 0.5, sharpness).proposal
    assert proposal is not None
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    assert [proposal.probability(token) for token in kept.tolist()] == pytest.approx(chances, abs=1e-4)


def test_row_is_left_alone() -> None:
    row = _model_like_row(1, 5000)
    row.flags.writeable = False
    guess_token(row, SamplingParams(temperature=1.0, top_p=0.9), 0)
