"""Chance that drafted tokens are accepted, learnt from every verdict: no model has to be trained for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from draftwire_edge.branch import Judged
from draftwire_edge.controller.estimators import RatioOfSums
from draftwire_edge.drafter import Guess, GuessSource


class CalibratedAcceptance:
    """Chance that a drafted token is accepted, from the drafter's own top probability.

    One fading ratio for each tenth of probability, started at what a calibrated drafter would show;
    so a drafter that is too sure of itself is found out.

    Args:
        decay: weight an observation keeps when the next one of its bin comes.
        prior_weight: observations the start is worth, a bin.
    """

    BINS = 10

    def __init__(self, decay: float = 0.98, prior_weight: float = 4.0) -> None:
        self._bins = [
            RatioOfSums(decay, (index + 0.5) / self.BINS, prior_weight) for index in range(self.BINS)
        ]

    def chance(self, top_probability: float) -> float:
        """Calibrated chance of a token guessed with this top probability."""
        return self._bins[self._index(top_probability)].value

    def add(self, top_probability: float, *, accepted: bool) -> None:
        """Take in one verified token."""
        self._bins[self._index(top_probability)].add(float(accepted), 1.0)

    def state(self) -> list[list[float]]:
        """What was seen, for ``restore``."""
        return [one.state() for one in self._bins]

    def restore(self, state: Sequence[Sequence[float]], weight: float) -> None:
        """Take up what was seen another time, ``weight`` of it."""
        for one, seen in zip(self._bins, state, strict=True):
            one.restore(seen, weight)

    def _index(self, top_probability: float) -> int:
        return min(self.BINS - 1, max(0, int(top_probability * self.BINS)))


class Survival:
    """Chance that a drafted prefix survives; copies and the draft model's guesses are calibrated apart."""

    def __init__(self) -> None:
        self._alpha = RatioOfSums(decay=0.95, prior=0.8, prior_weight=6.0)
        self._calibration = {source: CalibratedAcceptance() for source in get_args(GuessSource)}

    @property
    def alpha(self) -> float:
        """α, chance that one drafted token is accepted."""
        return self._alpha.value

    def add(self, judged: Sequence[Judged]) -> None:
        """Take in what the target said of some guesses."""
        if not judged:
            return  # no evidence, and no reason to forget any
        self._alpha.add(sum(one.accepted for one in judged), len(judged))
        for one in judged:
            self._calibration[one.guess.source].add(one.guess.top_probability, accepted=one.accepted)

    def of(self, guesses: Iterable[Guess]) -> float:
        """Chance that all of these are accepted."""
        return math.prod(self._calibration[one.source].chance(one.top_probability) for one in guesses)

    def of_next(self, guesses: Iterable[Guess]) -> float:
        """Chance that these and one more are; it is not drawn yet, so it counts as the average one."""
        return self.alpha * self.of(guesses)

    def state(self) -> dict[str, list[list[float]]]:
        """What was seen, for ``restore``."""
        bins = {source: calibration.state() for source, calibration in self._calibration.items()}
        return {"alpha": [self._alpha.state()], **bins}

    def restore(self, state: Mapping[str, Sequence[Sequence[float]]], weight: float) -> None:
        """Take up what was seen another time, ``weight`` of it."""
        self._alpha.restore(state["alpha"][0], weight)
        for source, calibration in self._calibration.items():
            calibration.restore(state[source], weight)
