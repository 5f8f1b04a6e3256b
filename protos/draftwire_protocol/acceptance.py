"""Acceptance of drafted tokens.

Words used here:

accepted token    a drafted token that was kept
recovered token   the target's token at the first position where the draft was wrong
bonus token       the target's token after a block that was accepted whole
verdict           the number accepted, then one recovered or bonus token

p is the target's distribution, q the draft model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


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


def expected_tokens(alpha: float, gamma: int) -> float:
    """E = (1 - α^(γ+1)) / (1 - α): mean tokens of a round, bonus included (Leviathan 2023, eq. 1)."""
    if alpha >= 1.0:
        return float(gamma + 1)
    return float((1.0 - alpha ** (gamma + 1)) / (1.0 - alpha))
