"""Warpers and the coupled choice against plain, slow definitions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftwire_protocol import sampling
from draftwire_protocol.errors import BrokenLogitsError, UserInputError
from draftwire_protocol.noise import gumbel_noise, position_key
from draftwire_protocol.params import MAX_ENTRIES, MAX_UINT32, MIN_TEMPERATURE, SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 3.0),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 10_000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Logits rows of all sizes; rounded ones have many exact ties."""
    size = draw(st.sampled_from([1, 2, 7, 64, 300, 5000, 20_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.normal(0, draw(st.sampled_from([0.0, 0.3, 3.0, 12.0])), size).astype(np.float32)
    return row.round(draw(st.sampled_from([0, 1, 7]))).astype(np.float32)


def reference_support(row: np.ndarray, params: SamplingParams) -> set[int]:
    """Surviving ids by full sort, float64."""
    scores = row.astype(np.float64) / params.temperature
    order = sorted(range(len(row)), key=lambda i: (-scores[i], i))
    if params.top_k:
        threshold = scores[order[min(params.top_k, len(order)) - 1]]
        order = [i for i in order if scores[i] >= threshold]
    if params.top_p < 1.0:
        chance = np.exp(scores[order] - scores[order[0]])
        mass = np.cumsum(chance / chance.sum())
        order = order[: int(np.count_nonzero(mass < params.top_p - 1e-9)) + 1]
    if params.min_p:
        floor = scores[order[0]] + np.log(params.min_p)
        order = [i for i in order if scores[i] >= floor - 1e-9]
    return set(order)


@given(rows(), st.sampled_from([1, 3, 64, 300]))
def test_top_candidates_are_exact_and_sorted_with_ties_by_id(row: np.ndarray, count: int) -> None:
    found = sampling.top_candidates(row, count)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    threshold = row[order[min(count, len(row)) - 1]]
    assert found.ids.tolist() == [i for i in order if row[i] >= threshold]


@settings(max_examples=300)
@given(rows(), PARAMS)
def test_warp_keeps_the_ids_of_the_plain_definition(row: np.ndarray, params: SamplingParams) -> None:
    kept = sampling.warp(row, params)
    expected = reference_support(row, params)
    if kept is None:
        assert len(expected) == len(row)
        return
    # Rounding may move the last id of a nucleus; everything else is equal.
    assert len(set(kept.ids.tolist()) ^ expected) <= (1 if params.top_p < 1.0 else 0)
    assert np.all(np.diff(kept.scores) <= 0)


@settings(max_examples=200)
@given(rows(), st.floats(0.05, 3.0), st.integers(0, 2**64 - 1), st.integers(0, 10_000))
def test_pruned_choice_equals_noise_on_every_id(
    row: np.ndarray, temperature: float, seed: int, position: int
) -> None:
    key = position_key(seed, position)
    total = row.astype(np.float64) / temperature + gumbel_noise(key, np.arange(len(row)))
    assert sampling.best_over_all(row, temperature, key) == (total.max(), int(np.argmax(total)))


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5, 4.0])
def test_nuclei_of_every_width_are_exact(temperature: float) -> None:
    # Widths from a few ids to most of the row: decided by the bounds, by each look, by the full sort.
    row = np.random.default_rng(5).normal(0, 2.5, 120_000).astype(np.float32)
    for top_p in (0.05, 0.3, 0.5, 0.9, 0.99, 0.9999, 1 - 1e-6, 1 - 1e-12, 1 - 2**-53):
        params = SamplingParams(temperature, top_p=top_p)
        kept = sampling.warp(row, params)
        assert kept is not None
        chance = np.exp(np.sort(row.astype(np.float64))[::-1] / temperature)
        mass = np.cumsum(chance)
        size = int(np.searchsorted(mass, top_p * mass[-1])) + 1
        # Which id is the last one is a matter of rounding; beyond float64's own, how many are.
        assert abs(len(kept.ids) - size) <= 1 or 1 - top_p < 1e-7
        assert mass[len(kept.ids) - 1] >= (top_p - 1e-11) * mass[-1]
        assert np.array_equal(np.sort(row[kept.ids])[::-1], np.sort(row)[::-1][: len(kept.ids)])


@given(st.integers(0, 10_000), st.floats(0.3, 1.5), st.floats(0.2, 0.999))
def test_a_nucleus_that_the_bounds_decide_is_exact(seed: int, temperature: float, top_p: float) -> None:
    # A few dozen ids stand out, so that the nucleus ends among them and the rest is bounded.
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 1, 5000).astype(np.float32)
    row[rng.integers(0, 5000, 60)] += rng.uniform(5, 12, 60).astype(np.float32)
    kept = sampling.warp(row, SamplingParams(temperature, top_p=top_p))
    chance = np.exp(np.sort(row.astype(np.float64))[::-1] / temperature)
    size = int(np.searchsorted(np.cumsum(chance), top_p * chance.sum())) + 1
    assert kept is not None
    assert abs(len(kept.ids) - size) <= 1


@given(rows(), PARAMS, st.floats(0.0, 0.999), st.integers(0, 2**32))
def test_banned_ids_are_as_if_they_were_not_there(
    row: np.ndarray, params: SamplingParams, share: float, seed: int
) -> None:
    left = np.flatnonzero(np.random.default_rng(seed).random(len(row)) >= share)
    if not len(left):
        return
    banned = np.full(len(row), -np.inf, np.float32)
    banned[left] = row[left]
    kept, alone = sampling.warp(banned, params), sampling.warp(row[left], params)
    if kept is not None and alone is not None:
        assert kept.ids.tolist() == left[alone.ids].tolist()
    token = sampling.choose_token(banned, params, 3)
    assert token in left


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 5}, {"typical_p": 0.5}])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_broken_logits_are_named(broken: float | None, temperature: float, filters: dict[str, Any]) -> None:
    row = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    row[10] = broken if broken is not None else row[10]
    if broken is None:
        row[:] = -np.inf
    with pytest.raises(BrokenLogitsError, match="logits are broken"):
        sampling.choose_token(row, SamplingParams(temperature, **filters), 7)


@given(rows(), st.sampled_from([1, 3, 64]), st.floats(0.05, 3.0))
def test_the_rest_is_never_more_than_its_bound(row: np.ndarray, count: int, temperature: float) -> None:
    found = sampling.top_candidates(row, count)
    chances = np.exp((row.astype(np.float64) - float(row.max())) / temperature)
    rest = chances.sum() - chances[found.ids].sum()
    assert rest <= sampling.chance_sum_bound(row, found, temperature) + 1e-9


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -1.5, float("-inf"), 3e38, -1e-45]), min_size=1))
def test_falling_order_is_the_stable_one(values: list[float]) -> None:
    array = np.array(values, np.float32)
    assert sampling._falling_order(array).tolist() == np.argsort(-array, kind="stable").tolist()


@given(rows(), PARAMS, st.integers(0, 10_000))
def test_choice_is_in_the_support_and_repeatable(
    row: np.ndarray, params: SamplingParams, position: int
) -> None:
    token = sampling.choose_token(row, params, position)
    kept = sampling.warp(row, params)
    assert kept is None or token in kept.ids
    assert token == sampling.choose_token(row.copy(), params, position)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.0, 0, 1.0, 0.0), SamplingParams(0.0, 40, 0.9)]
)
def test_greedy_takes_the_lowest_id_of_a_tie(params: SamplingParams) -> None:
    assert sampling.choose_token(np.array([1, 3, 3, 2], np.float32), params, 5) == 1


def test_tied_logits_and_tied_noise_go_to_the_lowest_id() -> None:
    same = sampling.Candidates(np.array([9, 4]), np.array([0.0, 0.0]))
    key = position_key(3, 0)
    low, high = gumbel_noise(key, np.array([4, 9]))
    level = sampling.Candidates(np.array([9, 4]), np.array([-high, -low]))
    assert sampling.coupled_choice(level, key) == 4
    assert sampling.coupled_choice(same, key) == (4 if low > high else 9)


@pytest.mark.parametrize(
    "params", [SamplingParams(1.0), SamplingParams(0.7, 5), SamplingParams(1.3, 0, 0.8, 0.02)]
)
def test_choice_over_seeds_follows_the_warped_distribution(params: SamplingParams) -> None:
    # Chi-square over 20,000 seeds; fixed seeds, threshold at a false-alarm rate of 1e-9.
    row = np.random.default_rng(0).normal(0, 1.5, 12).astype(np.float32)
    draws = 20_000
    counts = np.zeros(12)
    for seed in range(draws):
        one = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed)
        counts[sampling.choose_token(row, one, seed % 7)] += 1
    support = sorted(reference_support(row, params))
    chance = np.exp(row[support].astype(np.float64) / params.temperature)
    expected = draws * chance / chance.sum()
    assert counts.sum() == counts[support].sum()
    assert stats.chisquare(counts[support], expected).pvalue > 1e-9
    # Negative control: a temperature wrong by a fifth is caught.
    wrong = np.exp(row[support].astype(np.float64) / params.temperature * 1.2)
    assert stats.chisquare(counts[support], draws * wrong / wrong.sum()).pvalue < 1e-9


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "two biases"),
        ({"bad_words": ((1,) * 65,)}, "too long"),
        ({"repetition_penalty": 1e-300}, "--repetition-penalty"),
    ],
)
def test_what_would_hurt_or_be_ignored_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserInputError, match=problem):
        SamplingParams(**fields)


@pytest.mark.parametrize("field", ["logit_bias", "bad_words"])
def test_too_many_entries_are_refused(field: str) -> None:
    entries: Any = tuple((token, 1) for token in range(MAX_ENTRIES + 1))
    with pytest.raises(UserInputError, match="too many"):
        SamplingParams(**dict[str, Any]({field: entries}))
    SamplingParams(**dict[str, Any]({field: entries[1:]}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", 2e6), ("temperature", 9e-7), ("temperature", 5e-324),
        ("top_k", -1), ("top_k", 2**32), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5),
        ("seed", -1), ("seed", 2**64),
    ],
)  # fmt: skip
def test_bad_parameters_name_the_option(field: str, value: Any) -> None:
    with pytest.raises(UserInputError, match=f"--{field.replace('_', '-')}"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}, {"top_k": MAX_UINT32}])
def test_the_lowest_temperature_still_computes_and_is_greedy(filters: dict[str, Any]) -> None:
    row = (np.random.default_rng(0).normal(size=500) * 30).astype(np.float32)
    params = SamplingParams(MIN_TEMPERATURE, **filters, seed=1)
    assert sampling.choose_token(row, params, 7) == int(np.argmax(row))


def test_a_temperature_near_zero_is_told_of_greedy() -> None:
    with pytest.raises(UserInputError, match=r"--temperature: .* 0 for greedy"):
        SamplingParams(1e-9)
