"""p asked by id and drawn from, against the row written out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_protocol.acceptance import (
    TargetChances,
    open_mass,
    residual,
    verify_block,
    verify_rejection,
)
from draftwire_protocol.chances import WarpedChances
from draftwire_protocol.errors import BrokenLogitsError
from draftwire_protocol.noise import Purpose, position_key, uniform
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import Proposal, proposal_from
from draftwire_protocol.sampling import choose_token, top_candidates, warp
from protocol.dense import DenseChances, dense

FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.02},
    {"typical_p": 0.7},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
]


def written_out(logits: np.ndarray, params: SamplingParams, position: int) -> DenseChances:
    """The same p, by softmax over what the warpers keep."""
    kept = warp(logits, params)
    scores = np.full(len(logits), -np.inf)
    ids = np.arange(len(logits)) if kept is None else kept.ids
    scores[ids] = logits[ids].astype(np.float64) / params.temperature
    chances = np.exp(scores - scores.max())
    return DenseChances(chances / chances.sum(), position_key(params.seed, position))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, SamplingParams]:
    """Target rows and draft rows of a block, close to each other, with banned ids among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, gamma = draw(st.sampled_from([3, 70, 700])), draw(st.integers(0, 4))
    rows = rng.normal(0, draw(st.sampled_from([0.5, 3.0, 8.0])), (gamma + 1, size)).astype(np.float32)
    drafted = rows[:gamma] + rng.normal(0, draw(st.sampled_from([0.0, 1.0])), (gamma, size)).astype(
        np.float32
    )
    if draw(st.booleans()):
        banned = rng.random(size) < 0.4
        banned[rng.integers(size)] = False
        rows[:, banned] = -np.inf
    filters = draw(st.sampled_from(FILTERS))
    params = SamplingParams(draw(st.floats(0.2, 2.0)), seed=draw(st.integers(0, 2**64 - 1)), **filters)
    return rows, drafted, params


def proposed(row: np.ndarray, params: SamplingParams) -> Proposal:
    kept = warp(row, params) or top_candidates(row, 64)
    return proposal_from(kept)


@settings(max_examples=300, deadline=None)
@given(worlds(), st.integers(0, 1000), st.floats(0.05, 1.0))
def test_chances_and_redraws_are_those_of_the_row_written_out(
    world: tuple[np.ndarray, np.ndarray, SamplingParams], position: int, scale: float
) -> None:
    rows, drafted, params = world
    quick, plain = WarpedChances(rows[0], params, position), written_out(rows[0], params, position)
    everything = range(rows.shape[1])
    np.testing.assert_allclose(quick.of(everything), plain.of(everything), rtol=2e-6, atol=1e-12)
    assert quick.redraw() == plain.redraw()
    for row in drafted:
        q = proposed(row, params)
        mass = float(residual(plain.p, dense(q, len(row)), scale).sum())
        assert open_mass(quick.of(q.ids), dense(q, len(row))[list(q.ids)], scale) == pytest.approx(
            mass, abs=1e-6
        )
        if mass > 1e-5:
            assert quick.redraw(q, scale) == plain.redraw(q, scale)


@settings(max_examples=300, deadline=None)
@given(worlds(), st.integers(1, 1000))
def test_verdicts_are_those_of_the_rows_written_out(
    world: tuple[np.ndarray, np.ndarray, SamplingParams], start: int
) -> None:
    rows, drafted, params = world
    qs = [proposed(row, params) for row in drafted]
    block = [q.draw(uniform(params.seed, start, i, Purpose.DRAFT)) for i, q in enumerate(qs)]

    def accepts(offset: int) -> float:
        return uniform(params.seed, start, offset, Purpose.ACCEPT)

    def quick(offset: int) -> TargetChances:
        return WarpedChances(rows[offset], params, start + offset)

    def plain(offset: int) -> TargetChances:
        return written_out(rows[offset], params, start + offset)

    for verify in (verify_rejection, verify_block):
        assert verify(block, qs, quick, accepts) == verify(block, qs, plain, accepts)


@given(worlds(), st.integers(1, 1000))
def test_without_a_draft_the_token_is_the_coupled_one(
    world: tuple[np.ndarray, np.ndarray, SamplingParams], position: int
) -> None:
    rows, _, params = world
    assert WarpedChances(rows[0], params, position).redraw() == choose_token(rows[0], params, position)


def test_where_q_covers_everything_and_more_than_p_the_draw_is_from_p() -> None:
    # Only rounding leads there: nothing is rejected where p = q.
    row = np.log(np.array([0.5, 0.5], np.float32))
    chances = WarpedChances(row, SamplingParams(1.0), 3)
    assert chances.redraw(Proposal((0, 1), (1, 1)), 0.5) == chances.redraw()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_are_refused(broken: float) -> None:
    row = np.zeros(10, np.float32)
    row[3] = broken
    with pytest.raises(BrokenLogitsError):
        WarpedChances(row, SamplingParams(1.0), 0)
