"""Online estimates. Ratios are always a ratio of sums, never a mean of ratios (Jensen's bias)."""

from __future__ import annotations

import math
from collections.abc import Sequence


class RatioOfSums:
    """Σ numerators / Σ denominators, older observations fading.

    Args:
        decay: weight an observation keeps when the next one comes, 0 < decay <= 1.
        prior: value before anything was seen.
        prior_weight: denominators that the prior is worth; it fades like an observation.
    """

    def __init__(self, decay: float, prior: float = 0.0, prior_weight: float = 0.0) -> None:
        self._decay = decay
        self._prior = prior
        self._numerators = prior * prior_weight
        self._denominators = prior_weight

    def add(self, numerator: float, denominator: float) -> None:
        """Take in one observation."""
        self._numerators = self._numerators * self._decay + numerator
        self._denominators = self._denominators * self._decay + denominator

    def state(self) -> list[float]:
        """What was seen, for ``restore``."""
        return [self._numerators, self._denominators]

    def restore(self, state: Sequence[float], weight: float) -> None:
        """Take up what was seen another time, ``weight`` of it."""
        self._numerators, self._denominators = _faded(state, weight)

    @property
    def value(self) -> float:
        """The ratio; the prior while nothing was seen."""
        return self._numerators / self._denominators if self._denominators > 0.0 else self._prior


class FadingLine:
    """a + b·n by fading least squares, neither a nor b ever negative.

    The slope is pulled towards ``prior_slope · a`` while little was seen, so that equal n do not
    leave it undetermined.

    Args:
        decay: weight an observation keeps when the next one comes.
        prior_slope: b / a before anything was seen.
        prior_weight: observations the prior slope is worth.
    """

    def __init__(self, decay: float = 0.97, prior_slope: float = 0.03, prior_weight: float = 4.0) -> None:
        self._decay = decay
        self._prior_slope = prior_slope
        self._prior_weight = prior_weight
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def add(self, n: int, value: float) -> None:
        """Take in the value at ``n``."""
        keep = self._decay
        self._weight = self._weight * keep + 1.0
        self._n = self._n * keep + n
        self._t = self._t * keep + value
        self._nn = self._nn * keep + n * n
        self._nt = self._nt * keep + n * value

    def state(self) -> list[float]:
        """What was seen, for ``restore``."""
        return [self._weight, self._n, self._t, self._nn, self._nt]

    def restore(self, state: Sequence[float], weight: float) -> None:
        """Take up what was seen another time, ``weight`` of it."""
        self._weight, self._n, self._t, self._nn, self._nt = _faded(state, weight)

    @property
    def known(self) -> bool:
        """Whether anything was seen."""
        return self._weight > 0.0

    @property
    def slope(self) -> float:
        """b; 0 while nothing was seen."""
        if not self.known:
            return 0.0
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        prior = self._prior_slope * mean_t
        spread = self._nn - self._weight * mean_n**2
        covariance = self._nt - self._weight * mean_n * mean_t
        slope = (covariance + self._prior_weight * prior) / (spread + self._prior_weight)
        # One large value must not make the line cross zero: a is never negative.
        return min(max(0.0, slope), mean_t / mean_n if mean_n else 0.0)

    def at(self, n: float) -> float:
        """a + b·n; 0 while nothing was seen."""
        if not self.known:
            return 0.0
        return self._t / self._weight + self.slope * (n - self._n / self._weight)


class VerifyTime(FadingLine):
    """t_v(n) = a + b·n fitted to the server's own figures, in ms.

    A constant t_v instead of this line let γ of real systems run away.
    """

    @property
    def slope_ms(self) -> float:
        """Cost b of one more token, in ms."""
        return self.slope

    def ms(self, n: float) -> float:
        """t_v(n); 0 while nothing was seen."""
        return self.at(n)


def _faded(state: Sequence[float], weight: float) -> list[float]:
    """Sums from another time; ValueError when they can be none."""
    faded = [weight * float(one) for one in state]
    if not all(math.isfinite(one) and one >= 0.0 for one in faded):
        raise ValueError(f"{state} are no sums of what was measured")
    return faded
