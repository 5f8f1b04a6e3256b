"""Acceptance of drafted tokens.

Words used here:

accepted token    a drafted token that was kept
recovered token   the target's token at the first position where the draft was wrong
bonus token       the target's token after a block that was accepted whole
verdict           the number accepted, then one recovered or bonus token

p is the target's distribution, q the draft model's, both after all sampling parameters. In the
rejection schemes q is sparse and p a dense float64 row; Leviathan et al. 2023 (arXiv 2211.17192), Chen
et al. 2023 (2302.01318), block verification Sun et al. 2025 (2403.10444).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from draftwire_protocol.errors import NothingToWriteError
from draftwire_protocol.noise import Float64Array
from draftwire_protocol.proposal import Proposal


class TargetChances(Protocol):
    """p of one position, after all sampling parameters."""

    def of(self, ids: Sequence[int]) -> Float64Array:
        """p of some ids."""

    def redraw(self, q: Proposal | None = None, scale: float = 1.0) -> int:
        """A token from ``residual(p, q, scale)``, normalised; from p where there is no q, or nothing left.

        The draw is independent of what drew and accepted the draft.
        """


#: p(. | i drafted tokens), by offset i.
TargetRow = Callable[[int], TargetChances]
#: A uniform in (0, 1) by offset, independent of those that drew the draft.
Uniform = Callable[[int], float]


class Accepted(NamedTuple):
    """Outcome of verifying one block."""

    num_accepted: int
    #: The target's token after the accepted ones: recovered or bonus.
    token: int


def verify_coupled(draft: Sequence[int], target_token: Callable[[int], int]) -> Accepted:
    """Accept drafted tokens while they equal the target's own (coupled scheme).

    With noise shared by both ends this is the Gumbel coupling of Daliri, Musco and Suresh (2024,
    arXiv 2408.07978): the output is the target's own sample whatever the draft was.

    Args:
        draft: drafted ids, ``[gamma]``, possibly empty.
        target_token: the target's token at offset i of the block, given the drafted ids before
            it; called for i = 0 .. num_accepted only, so rows after a mismatch cost nothing.
    """
    for offset, drafted in enumerate(draft):
        token = target_token(offset)
        if token != drafted:
            return Accepted(offset, token)
    return Accepted(len(draft), target_token(len(draft)))


def accept_probability(p: float, q: float) -> float:
    """min(1, p/q) (Leviathan 2023, 2.3)."""
    return min(1.0, p / q)


def residual(p: Float64Array, q: Float64Array, scale: float = 1.0) -> Float64Array:
    """max(0, scale p - q), not normalised.

    Args:
        p: of some ids, ``[k]``.
        q: of the same ids, ``[k]``.
        scale: w of block verification; 1 in plain rejection.
    """
    return np.maximum(0.0, scale * p - q)


def open_mass(p: Float64Array, q: Float64Array, scale: float) -> float:
    """Sum of ``residual`` over the whole vocabulary: scale - Σ min(scale p, q), since p sums to 1.

    Args:
        p: of the ids of q, ``[k]``.
        q: of all ids that it does not rule out, ``[k]``.
        scale: w of block verification.
    """
    return max(0.0, scale - float(np.minimum(scale * p, q).sum()))


def verify_rejection(
    draft: Sequence[int], proposals: Sequence[Proposal], target_row: TargetRow, uniform: Uniform
) -> Accepted:
    """Accept each token with min(1, p/q); redraw the first rejected one from the residual.

    Args:
        draft: drafted ids, ``[gamma]``.
        proposals: what each was drawn from, ``[gamma]``.
        target_row: called for offsets 0 .. num_accepted only.
        uniform: decides on each token.
    """
    for offset, (token, q) in enumerate(zip(draft, proposals, strict=True)):
        p = target_row(offset)
        chance = accept_probability(float(p.of([token])[0]), q.probability(token))
        if uniform(offset) >= chance:
            return Accepted(offset, p.redraw(q))
    return Accepted(len(draft), target_row(len(draft)).redraw())


class BlockChances(NamedTuple):
    """Per offset 0 .. gamma of a block."""

    #: w: probability that at least this many tokens are kept, given the draft.
    kept: list[float]
    #: h: probability of keeping exactly this many, given that no more are; h[0] = 1.
    ends: list[float]


def block_chances(draft: Sequence[int], proposals: Sequence[Proposal], target_row: TargetRow) -> BlockChances:
    """w and h of block verification (Sun 2025, algorithm 2).

    w_0 = 1, w_i = min(1, w_(i-1) p(x_i)/q(x_i)); S_i = sum_x max(0, w_i p(x) - q(x)) of the next place;
    h_i = S_i / (S_i + 1 - w_i), and h_gamma = w_gamma.

    Args:
        draft: ``[gamma]``.
        proposals: ``[gamma]``.
        target_row: asked up to twice for an offset up to gamma - 1, or to the first impossible token.
    """
    gamma = len(draft)
    kept, ends = [1.0] + [0.0] * gamma, [1.0] + [0.0] * gamma
    for place, (token, q) in enumerate(zip(draft, proposals, strict=True), start=1):
        try:
            p = float(target_row(place - 1).of([token])[0])
        except NothingToWriteError:
            break
        w = min(1.0, kept[place - 1] * p / q.probability(token))
        if w == 0.0:
            break
        kept[place] = w
        if place == gamma:
            ends[place] = w
        else:
            mass = _open_mass(target_row, place, proposals[place], w)
            ends[place] = mass / (mass + 1.0 - w) if mass + 1.0 > w else 1.0
    return BlockChances(kept, ends)


def _open_mass(target_row: TargetRow, place: int, q: Proposal, w: float) -> float:
    """S of ``block_chances``."""
    try:
        p = target_row(place).of(q.ids)
    except NothingToWriteError:
        # The target would end in an error here, with all of its probability; q has no part in that.
        return w
    return open_mass(p, np.array(q.weights) / q.total, w)


def verify_block(
    draft: Sequence[int], proposals: Sequence[Proposal], target_row: TargetRow, uniform: Uniform
) -> Accepted:
    """Judge the block as a whole: keep the longest prefix whose draw falls under h (Sun 2025, algorithm 2).

    Args:
        draft: drafted ids, ``[gamma]``.
        proposals: what each was drawn from, ``[gamma]``.
        target_row: asked up to three times for an offset, for the last one only if all is kept. Where
            it raises NothingToWriteError, so does this if the kept prefix ends there, and only then.
        uniform: asked for each place, kept or not.
    """
    chances = block_chances(draft, proposals, target_row)
    places = range(1, len(draft) + 1)
    accepted = max((i for i in places if uniform(i - 1) < chances.ends[i]), default=0)
    p = target_row(accepted)
    if accepted == len(draft):
        return Accepted(accepted, p.redraw())
    return Accepted(accepted, p.redraw(proposals[accepted], chances.kept[accepted]))


def expected_tokens(alpha: float, gamma: int) -> float:
    """E = (1 - α^(γ+1)) / (1 - α): mean tokens of a round, bonus included (Leviathan 2023, eq. 1)."""
    if alpha >= 1.0:
        return float(gamma + 1)
    return float((1.0 - alpha ** (gamma + 1)) / (1.0 - alpha))
