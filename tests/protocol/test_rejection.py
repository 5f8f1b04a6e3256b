"""The rejection schemes' arithmetic, exactly: what comes out is p, whatever q was."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_protocol import acceptance
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.noise import Purpose, uniform
from draftwire_protocol.proposal import (
    MAX_WEIGHT,
    Proposal,
    certain,
    check_proposals,
    proposal_from,
)
from draftwire_protocol.sampling import Candidates
from protocol.dense import DenseChances, dense

VOCABULARY = 4


@st.composite
def target_rows(draw: st.DrawFn, size: int = VOCABULARY) -> np.ndarray:
    """p with zeros, one-hot and padded tails among them."""
    weights = draw(
        st.lists(st.sampled_from([0.0, 0.0, 1e-9, 0.2, 1.0, 3.0]), min_size=size, max_size=size).filter(any)
    )
    row = np.array(weights)
    return np.asarray(row / row.sum())


@st.composite
def sparse_proposals(draw: st.DrawFn, size: int = VOCABULARY) -> Proposal:
    """q with zero support, one-hot, and equal to a p."""
    ids = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    weights = draw(st.lists(st.integers(1, MAX_WEIGHT), min_size=len(ids), max_size=len(ids)))
    return Proposal(tuple(ids), tuple(weights))


@given(target_rows(), sparse_proposals())
def test_accepted_and_redrawn_together_are_p(p: np.ndarray, q: Proposal) -> None:
    chance = np.array(
        [
            acceptance.accept_probability(float(p[x]), q.probability(x)) if q.probability(x) else 0.0
            for x in range(VOCABULARY)
        ]
    )
    drawn = dense(q, VOCABULARY)
    accepted = drawn * chance
    rest = acceptance.residual(p, drawn)
    ids = list(q.ids)
    assert acceptance.open_mass(p[ids], drawn[ids], 1.0) == pytest.approx(rest.sum(), abs=1e-12)
    if rest.any():
        accepted = accepted + (1.0 - accepted.sum()) * rest / rest.sum()
    np.testing.assert_allclose(accepted, p, atol=1e-12)


@given(target_rows())
def test_nothing_is_rejected_when_q_is_p(p: np.ndarray) -> None:
    q = proposal_from(Candidates(np.flatnonzero(p), np.log(p[p > 0])))
    exact = dense(q, VOCABULARY)
    assert all(acceptance.accept_probability(exact[x], q.probability(x)) == 1.0 for x in q.ids)
    assert acceptance.residual(exact, dense(q, VOCABULARY)).sum() == 0.0


def _along(rows: dict[tuple[int, ...], np.ndarray], block: tuple[int, ...]) -> acceptance.TargetRow:
    """The target's rows after each prefix of a block."""
    return lambda offset: DenseChances(rows[block[:offset]])


def _block_outcome(
    rows: dict[tuple[int, ...], np.ndarray],
    proposals: dict[tuple[int, ...], Proposal],
    gamma: int,
    residual_scale: bool = True,
) -> dict[tuple[int, ...], float]:
    """Distribution over gamma + 1 tokens: the block's, then p for what it left open."""
    found: dict[tuple[int, ...], float] = dict.fromkeys(product(range(VOCABULARY), repeat=gamma + 1), 0.0)
    for block in product(range(VOCABULARY), repeat=gamma):
        qs = [proposals[block[:i]] for i in range(gamma)]
        drawn = float(np.prod([q.probability(x) for q, x in zip(qs, block, strict=True)]))
        if not drawn:
            continue
        chances = acceptance.block_chances(block, qs, _along(rows, block))
        for kept in range(gamma + 1):
            here = drawn * chances.ends[kept]
            here *= float(np.prod([1.0 - chances.ends[i] for i in range(kept + 1, gamma + 1)]))
            if not here:
                continue
            p = rows[block[:kept]]
            scale = chances.kept[kept] if residual_scale else 1.0
            rest = p if kept == gamma else acceptance.residual(p, dense(qs[kept], VOCABULARY), scale)
            rest = rest / rest.sum() if rest.any() else p
            for token in range(VOCABULARY):
                _continue(found, rows, (*block[:kept], token), here * float(rest[token]), gamma + 1)
    return found


def _continue(
    found: dict[tuple[int, ...], float],
    rows: dict[tuple[int, ...], np.ndarray],
    text: tuple[int, ...],
    chance: float,
    length: int,
) -> None:
    if len(text) == length:
        found[text] += chance
        return
    for token in range(VOCABULARY):
        _continue(found, rows, (*text, token), chance * float(rows[text][token]), length)


def _world(
    seed: int, gamma: int
) -> tuple[dict[tuple[int, ...], np.ndarray], dict[tuple[int, ...], Proposal]]:
    """Random p after every prefix and q related to it; sharp, flat and partly zero rows."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[int, ...], np.ndarray] = {}
    proposals: dict[tuple[int, ...], Proposal] = {}
    for length in range(gamma + 1):
        for text in product(range(VOCABULARY), repeat=length):
            p = rng.dirichlet(np.full(VOCABULARY, rng.choice([0.2, 1.0, 5.0])))
            p[rng.random(VOCABULARY) < 0.2] = 0.0
            rows[text] = p / p.sum() if p.any() else np.eye(VOCABULARY)[0]
            weights = np.maximum(rng.integers(1, 50, VOCABULARY), (rows[text] * 200).astype(int))
            ids = [x for x in range(VOCABULARY) if rng.random() < 0.8] or [0]
            proposals[text] = Proposal(tuple(ids), tuple(int(weights[x]) for x in ids))
    return rows, proposals


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 2))
def test_block_verification_keeps_the_target_distribution(seed: int, gamma: int) -> None:
    rows, proposals = _world(seed, gamma)
    found = _block_outcome(rows, proposals, gamma)
    for text, chance in found.items():
        expected = float(np.prod([rows[text[:i]][text[i]] for i in range(gamma + 1)]))
        assert chance == pytest.approx(expected, abs=1e-12)


def test_the_block_identity_catches_a_residual_without_its_weight() -> None:
    # Negative control of the test above.
    errors = []
    for seed in range(10):
        rows, proposals = _world(seed, 2)
        for text, chance in _block_outcome(rows, proposals, 2, residual_scale=False).items():
            errors.append(abs(chance - float(np.prod([rows[text[:i]][text[i]] for i in range(3)]))))
    assert max(errors) > 1e-4


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_block_verification_never_keeps_fewer_tokens(seed: int) -> None:
    # Expected length of what is kept, against plain rejection, enumerated (Sun 2025, theorem 2).
    rows, proposals = _world(seed, 2)
    by_block = by_rejection = 0.0
    for block in product(range(VOCABULARY), repeat=2):
        qs = [proposals[block[:i]] for i in range(2)]
        drawn = float(np.prod([q.probability(x) for q, x in zip(qs, block, strict=True)]))
        if not drawn:
            continue
        row = _along(rows, block)
        kept = acceptance.block_chances(block, qs, row).ends
        by_block += drawn * (2 * kept[2] + kept[1] * (1 - kept[2]))
        first, second = (
            acceptance.accept_probability(float(row(i).of([block[i]])[0]), qs[i].probability(block[i]))
            for i in range(2)
        )
        by_rejection += drawn * first * (1 + second)
    assert by_block >= by_rejection - 1e-12


@given(sparse_proposals(), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_draws_have_a_chance(q: Proposal, quantile: float) -> None:
    assert q.draw(quantile) in q.ids


def test_rounding_comes_before_drawing() -> None:
    # An id below half a weight has none, so it can never be drawn.
    scores = np.array([0.0, -1.0, -13.0])
    q = proposal_from(Candidates(np.array([5, 2, 9]), scores))
    assert q.ids == (5, 2)
    assert q.probability(9) == 0.0
    assert q.probability(5) + q.probability(2) == 1.0


def test_uniforms_differ_by_block_place_and_purpose() -> None:
    draws = [
        uniform(seed, start, offset, purpose)
        for seed, start, offset, purpose in product((0, 1), range(20), range(8), Purpose)
    ]
    assert len(set(draws)) == len(draws)
    assert all(0.0 < one < 1.0 for one in draws)
    assert abs(float(np.mean(draws)) - 0.5) < 0.05


@pytest.mark.parametrize(
    ("ids", "proposals"),
    [
        ([1], []),
        ([1], [Proposal((2,), (1,))]),
        ([1], [Proposal((1, 1), (1, 1))]),
        ([1], [Proposal((1, 2), (1,))]),
        ([1], [Proposal((1,), (0,))]),
        ([1], [Proposal((1,), (MAX_WEIGHT + 1,))]),
        ([1], [Proposal((1, 10), (1, 1))]),
        ([1], [Proposal((), ())]),
        ([1], [Proposal(tuple(range(65)), (1,) * 65)]),
    ],
)
def test_an_impossible_proposal_is_refused(ids: list[int], proposals: list[Proposal]) -> None:
    with pytest.raises(ProtocolError):
        check_proposals(ids, proposals, 10)
    check_proposals([1], [certain(1)], 10)
