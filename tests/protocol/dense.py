"""The plain form of ``TargetChances``: a row of probabilities, float64 ``[n_tokens]``."""

from collections.abc import Sequence

import numpy as np

from draftwire_protocol.acceptance import residual
from draftwire_protocol.noise import Float64Array, gumbel_noise
from draftwire_protocol.proposal import Proposal


def dense(q: Proposal, size: int) -> Float64Array:
    """q of every id."""
    row = np.zeros(size)
    row[list(q.ids)] = np.array(q.weights) / q.total
    return row


class DenseChances:
    """p written out.

    Args:
        p: ``[n_tokens]``.
        key: of the noise that draws.
    """

    def __init__(self, p: Float64Array, key: int = 0) -> None:
        self.p = p
        self._key = key

    def of(self, ids: Sequence[int]) -> Float64Array:
        """p of some ids."""
        return self.p[list(ids)]

    def redraw(self, q: Proposal | None = None, scale: float = 1.0) -> int:
        """Gumbel-max over the whole residual."""
        rest = self.p if q is None else residual(self.p, dense(q, len(self.p)), scale)
        rest = rest if rest.any() else self.p
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(rest) + gumbel_noise(self._key, np.arange(len(rest)))))
