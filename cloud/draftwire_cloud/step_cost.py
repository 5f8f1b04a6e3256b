"""What a forward pass takes, learnt from those that were made. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

#: An observation counts this much less with each later one: about the last 50 passes matter.
_FORGET = 0.98
#: Passes before a prediction is worth anything.
_ENOUGH = 4
#: Pairs are counted in so many.
_PAIRS = 1000.0
#: How much each part is drawn towards zero.
_DOUBT = np.array([1e-9, 1e-9, 1e-9, 1e-6])


class PassShape(NamedTuple):
    """How much a forward pass has to do."""

    #: New tokens.
    rows: int
    #: Pairs of a new token and a token it may look at.
    pairs: int
    #: Sessions: each has keys and values of its own to be read, however few its new tokens are.
    sessions: int = 1

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> PassShape:
        """The shape of a pass over spans, each given as tokens held before it and new tokens."""
        spans = list(spans)
        pairs = sum(new * (past + new) for past, new in spans)
        return cls(sum(new for _, new in spans), pairs, len(spans))


class StepCost:
    """``t = a + b rows + c pairs + d sessions`` in seconds, by least squares over recent passes.

    The constant matters most: without it the cost of a small pass looks proportional to its tokens, and
    nothing speaks for batching (DESIGN 5 for the same mistake at the edge). Without the sessions a token
    more in a full pass looks dearer than it is.
    """

    def __init__(self) -> None:
        self._xx = np.zeros((4, 4))
        self._xt = np.zeros(4)
        self._seen = 0
        self._abcd = np.zeros(4)

    @property
    def known(self) -> bool:
        """Whether there were enough passes to predict from."""
        return self._seen >= _ENOUGH

    def fixed_s(self, sessions: int) -> float:
        """``a + d sessions``: what a pass takes however many tokens they have, in seconds."""
        return float(self._abcd[0] + sessions * self._abcd[3])

    @property
    def row_s(self) -> float:
        """b: what one more new token takes, in seconds."""
        return float(self._abcd[1])

    def observe(self, shape: PassShape, seconds: float) -> None:
        """Learn from one forward pass."""
        x = _features(shape)
        # Errors count relative to the time, or long prompts would drown the short passes.
        weight = 1.0 / max(seconds, 1e-6) ** 2
        self._xx = _FORGET * self._xx + weight * np.outer(x, x)
        self._xt = _FORGET * self._xt + weight * seconds * x
        self._seen += 1
        self._abcd = _non_negative_fit(self._xx, self._xt)

    def predict(self, shape: PassShape) -> float:
        """Seconds a pass of this shape takes; 0 before enough was seen."""
        return float(self._abcd @ _features(shape)) if self.known else 0.0

    def affordable(self, past: int, seconds: float, most: int) -> int:
        """New tokens behind ``past`` ones that lengthen a pass by at most ``seconds``; at most ``most``.

        The larger root of ``c n^2 + (b + c past) n = seconds``.
        """
        _, b, c, _ = self._abcd / (1.0, 1.0, _PAIRS, 1.0)
        linear = b + c * past
        if not self.known or (linear <= 0 and c <= 0):
            return most
        root = seconds / linear if c <= 0 else (np.sqrt(linear**2 + 4 * c * seconds) - linear) / (2 * c)
        return min(most, int(root))


def _features(shape: PassShape) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # Numbers of like size are solved for more exactly.
    return np.array([1.0, shape.rows, shape.pairs / _PAIRS, shape.sessions])


def _non_negative_fit(
    xx: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    xt: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares without negative coefficients: those that come out negative are left out."""
    kept = [0, 1, 2, 3]
    while kept:
        part = xx[np.ix_(kept, kept)]
        # A little weight on zero: passes that were all alike say nothing about the parts. As long as all
        # had one session, more are taken to cost nothing.
        ridge = np.diag(np.diag(part) * _DOUBT[kept]) + 1e-18 * np.eye(len(kept))
        solved = np.linalg.solve(part + ridge, xt[kept])
        if (solved >= 0).all():
            fit = np.zeros(4)
            fit[kept] = solved
            return fit
        kept = [k for k, value in zip(kept, solved, strict=True) if value >= 0]
    return np.zeros(4)
