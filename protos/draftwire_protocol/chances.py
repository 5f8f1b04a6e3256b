"""p of one position after all sampling parameters: asked by id, drawn from, never written out.

The rejection schemes need p at the few ids of a proposal and one draw; a dense row of 150,000
probabilities would cost more than the rest of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from draftwire_protocol.acceptance import residual
from draftwire_protocol.noise import Float64Array, Int64Array, gumbel_noise, position_key
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import Proposal
from draftwire_protocol.sampling import (
    Candidates,
    Float32Array,
    best_of,
    best_over_all,
    chance_sum,
    likeliest_id,
    scores_of,
    warp,
)
from draftwire_protocol.scratch import scratch


class WarpedChances:
    """``TargetChances`` from a row of logits.

    Args:
        logits: float32 ``[n_tokens]``, padding ids cut off; -inf where an id is banned. Kept, not copied.
        params: with temperature > 0.
        position: absolute index of the token in prompt + output; its noise draws it.

    Raises:
        BrokenLogitsError: they are not numbers, or every id is banned.
    """

    def __init__(self, logits: Float32Array, params: SamplingParams, position: int) -> None:
        highest = float(logits[likeliest_id(logits)])
        self._logits, self._temperature = logits, params.temperature
        self._key = position_key(params.seed, position)
        kept = warp(logits, params)
        if kept is None:
            self._kept = None
            total = chance_sum(logits, highest, params.temperature)
        else:
            rising = np.argsort(kept.ids)
            self._kept = Candidates(kept.ids[rising], kept.scores[rising])
            total = float(np.exp(kept.scores - highest / params.temperature).sum())
        self._log_total = highest / params.temperature + math.log(total)

    def of(self, ids: Sequence[int]) -> Float64Array:
        """p of some ids."""
        return np.exp(self._scores(np.array(ids, np.int64)) - self._log_total)

    def _scores(self, ids: Int64Array) -> Float64Array:
        """logit / T; -inf where a warper took the id out."""
        if self._kept is None:
            return scores_of(self._logits, ids, self._temperature)
        places = np.minimum(np.searchsorted(self._kept.ids, ids), len(self._kept.ids) - 1)
        return np.where(self._kept.ids[places] == ids, self._kept.scores[places], -np.inf)

    def redraw(self, q: Proposal | None = None, scale: float = 1.0) -> int:
        """A token from max(0, scale p - q): argmax of its logarithm plus the position's noise.

        Args:
            q: what the rejected token was drawn from; None draws from p.
            scale: w of block verification; 1 in plain rejection.
        """
        if q is None:
            return self._best_without(np.empty(0, np.int64))[0][1]
        ids = np.array(q.ids, np.int64)
        rest = residual(self.of(ids.tolist()), np.array(q.weights) / q.total, scale)
        found = self._best_without(ids)
        if (left := rest > 0.0).any():
            # In units of the other ids' scores, logit / T.
            scores = np.log(rest[left] / scale) + self._log_total
            found.append(best_of(ids[left], scores + gumbel_noise(self._key, ids[left])))
        # Nothing is left only by rounding, where p = q and nothing is ever rejected.
        return min((-perturbed, token) for perturbed, token in found)[1] if found else self.redraw()

    def _best_without(self, ids: Int64Array) -> list[tuple[float, int]]:
        """The winner among all but some ids, with its perturbed score; none where no other is left."""
        if self._kept is not None:
            others = ~np.isin(self._kept.ids, ids)
            kept, scores = self._kept.ids[others], self._kept.scores[others]
            return [best_of(kept, scores + gumbel_noise(self._key, kept))] if len(kept) else []
        row = self._logits
        if len(ids):
            row = scratch("others", len(row), np.float32)
            np.copyto(row, self._logits)
            row[ids] = -np.inf
        return [best_over_all(row, self._temperature, self._key)] if row.max() > -np.inf else []
