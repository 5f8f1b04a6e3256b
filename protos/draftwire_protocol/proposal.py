"""The sparse distribution q that a drafted token was drawn from, exactly as it travels.

Rounding comes before drawing: the token is drawn from the rounded weights, so both ends speak of the
same q (drawing first and rounding later biases the output).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.sampling import Candidates

#: Most ids in a proposal; the rest of q is cut off before drawing.
MAX_PROPOSAL_IDS = 64
MAX_WEIGHT = 65_535


@dataclass(frozen=True, slots=True)
class Proposal:
    """q(ids[i]) = weights[i] / sum(weights), zero elsewhere."""

    ids: tuple[int, ...]
    #: 1 .. ``MAX_WEIGHT`` each.
    weights: tuple[int, ...]

    @property
    def total(self) -> int:
        """Sum of the weights."""
        return sum(self.weights)

    def probability(self, token: int) -> float:
        """q(token)."""
        return self.weights[self.ids.index(token)] / self.total if token in self.ids else 0.0

    def draw(self, uniform: float) -> int:
        """The id at quantile ``uniform`` in (0, 1)."""
        reached = np.cumsum(self.weights)
        return self.ids[int(np.searchsorted(reached, uniform * self.total, side="right"))]


def certain(token: int) -> Proposal:
    """The proposal of a drafter that knows no probabilities: all on one id."""
    return Proposal((token,), (1,))


def proposal_from(candidates: Candidates) -> Proposal:
    """Softmax of the first ``MAX_PROPOSAL_IDS`` candidates, rounded to weights; ids without weight fall out.

    Args:
        candidates: by falling score, at least one.
    """
    scores = candidates.scores[:MAX_PROPOSAL_IDS]
    chances = np.exp(scores - scores[0])
    weights = np.rint(chances / chances.sum() * MAX_WEIGHT).astype(np.int64)
    kept = np.flatnonzero(weights)
    return Proposal(tuple(candidates.ids[kept].tolist()), tuple(weights[kept].tolist()))


def check_proposals(ids: Sequence[int], proposals: Sequence[Proposal], n_tokens: int) -> None:
    """Refuse a block whose q cannot be what its ids were drawn from.

    Raises:
        ProtocolError: a count, an id or a weight is out of range, or a drafted id has no chance.
    """
    if len(proposals) != len(ids):
        raise ProtocolError(f"{len(proposals)} proposals for {len(ids)} drafted tokens")
    for token, proposal in zip(ids, proposals, strict=True):
        if len(proposal.ids) != len(proposal.weights) or len(proposal.ids) > MAX_PROPOSAL_IDS:
            raise ProtocolError(f"a proposal of {len(proposal.ids)} ids and {len(proposal.weights)} weights")
        if len(set(proposal.ids)) != len(proposal.ids) or max(proposal.ids, default=0) >= n_tokens:
            raise ProtocolError("a proposal with an id twice, or one that the vocabulary does not have")
        if not all(1 <= weight <= MAX_WEIGHT for weight in proposal.weights):
            raise ProtocolError(f"a proposal with a weight outside [1, {MAX_WEIGHT}]")
        if token not in proposal.ids:
            raise ProtocolError(f"token {token} was drawn from a proposal that does not have it")
