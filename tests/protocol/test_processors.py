"""Processors against transformers' own, position by position, and their way back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol.errors import UserInputError
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.processors import LogitsProcessors, check_ids
from draftwire_protocol.sampling import warp

torch = pytest.importorskip("torch")
logits_process = pytest.importorskip("transformers.generation.logits_process")

N_TOKENS = 40
EOS = (3, 7)
TOKENS = st.integers(0, N_TOKENS - 1)
WORDS = st.lists(TOKENS, min_size=1, max_size=3).map(tuple)
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    logit_bias=st.dictionaries(TOKENS, st.floats(-5, 5, width=32), max_size=3).map(
        lambda d: tuple(d.items())
    ),
    min_tokens=st.sampled_from([0, 2, 5]),
    bad_words=st.lists(WORDS, max_size=3, unique=True).map(tuple),
)


def _row(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, N_TOKENS).astype(np.float32)


def _by_transformers(row: np.ndarray, ids: list[int], num_prompt: int, params: SamplingParams) -> np.ndarray:
    """The same options through transformers' processors, in the order of its ``generate``."""
    chain: list[Any] = []
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias}
        chain.append(logits_process.SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1.0:
        chain.append(logits_process.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if any(word not in {(one,) for one in EOS} for word in params.bad_words):
        words = [list(word) for word in params.bad_words]
        chain.append(logits_process.NoBadWordsLogitsProcessor(words, list(EOS)))
    if params.min_tokens:
        chain.append(
            logits_process.MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, list(EOS), "cpu")
        )
    scores = torch.tensor(row)[None]
    for processor in chain:
        scores = processor(torch.tensor([ids]), scores)
    return np.asarray(scores[0])


@given(PARAMS, st.lists(TOKENS, min_size=2, max_size=12), st.integers(1, 2), st.integers(0, 99))
def test_processors_equal_those_of_transformers(
    params: SamplingParams, ids: list[int], num_prompt: int, seed: int
) -> None:
    processors = LogitsProcessors(params, num_prompt, EOS)
    processors.move_to(ids)
    row = _row(seed)
    before = row.copy()
    np.testing.assert_allclose(processors(row), _by_transformers(row, ids, num_prompt, params), rtol=1e-6)
    assert np.array_equal(row, before)


@given(
    PARAMS,
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.lists(st.lists(TOKENS, min_size=1, max_size=9), min_size=2, max_size=6),
)
def test_the_way_to_a_position_does_not_matter(
    params: SamplingParams, presence: float, frequency: float, stops: list[list[int]]
) -> None:
    from dataclasses import replace

    params = replace(params, presence_penalty=presence, frequency_penalty=frequency)
    travelled = LogitsProcessors(params, 1, EOS)
    for ids in stops:
        travelled.move_to(ids)
        fresh = LogitsProcessors(params, 1, EOS)
        for token in ids:
            fresh.assume(token)
        assert np.array_equal(travelled(_row(1)), fresh(_row(1)))


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    processors = LogitsProcessors(params, 2, EOS)
    processors.move_to([9, 10, 10, 11, 11, 11])
    change = processors(np.zeros(N_TOKENS, np.float32))
    assert change[9] == 0.0
    assert change[10] == -0.75
    assert change[11] == -1.25


def test_nothing_left_to_write_is_an_error() -> None:
    bans = SamplingParams(bad_words=tuple((token,) for token in range(4)), min_tokens=2)
    processors = LogitsProcessors(bans, 1, (4,))
    with pytest.raises(UserInputError, match="no token to write"):
        processors(np.zeros(5, np.float32))


@pytest.mark.parametrize(
    ("params", "option"),
    [
        (SamplingParams(logit_bias=((40, 1.0),)), "--logit-bias"),
        (SamplingParams(bad_words=((1, 40),)), "--bad-word"),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(params: SamplingParams, option: str) -> None:
    with pytest.raises(UserInputError, match=option):
        check_ids(params, N_TOKENS)
    check_ids(params, N_TOKENS + 1)


@given(
    st.integers(0, 999),
    st.sampled_from([0.3, 0.9, 1.0]),
    st.sampled_from([0, 5]),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from([0.0, 0.02]),
)
def test_warpers_equal_those_of_transformers(
    seed: int, typical_p: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(0.8, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    scores = torch.tensor(_row(seed))[None]
    chain: list[Any] = [logits_process.TemperatureLogitsWarper(0.8)]
    if top_k:
        chain.append(logits_process.TopKLogitsWarper(top_k))
    if top_p < 1.0:
        chain.append(logits_process.TopPLogitsWarper(top_p))
    if min_p:
        chain.append(logits_process.MinPLogitsWarper(min_p))
    if typical_p < 1.0:
        chain.append(logits_process.TypicalLogitsWarper(typical_p))
    for warper in chain:
        scores = warper(None, scores)
    kept = warp(_row(seed), params)
    ids = range(N_TOKENS) if kept is None else kept.ids.tolist()
    assert sorted(ids) == torch.isfinite(scores[0]).nonzero().flatten().tolist()
