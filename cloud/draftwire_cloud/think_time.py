"""How long an edge takes from a verdict to its next draft. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from draftwire_cloud.window import Expected

#: Weights of the newest figure in the mean and in the deviation, and deviations until a draft is late; the
#: smoothing of RFC 6298, section 2, with half its patience: a wait in vain costs others time.
_MEAN, _DEVIATION, _PATIENCE = 1 / 8, 1 / 4, 2.0


@dataclass(slots=True)
class Smoothed:
    """Mean and mean deviation of lately seen times, in seconds."""

    mean_s: float | None = None
    deviation_s: float = 0.0

    def add(self, took: float) -> None:
        """Take in one time."""
        if self.mean_s is None:
            self.mean_s, self.deviation_s = took, took / 2
        else:
            self.deviation_s += _DEVIATION * (abs(took - self.mean_s) - self.deviation_s)
            self.mean_s += _MEAN * (took - self.mean_s)


@dataclass(slots=True)
class ThinkTime:
    """The time between a verdict and the draft that answers it."""

    #: When the last verdict left, in seconds.
    answered_at: float = -math.inf
    own: Smoothed = field(default_factory=Smoothed)
    #: Of all sessions: what is expected of one that was never seen to draft.
    usual: Smoothed = field(default_factory=Smoothed)
    _waiting: bool = False

    def answered(self, at: float) -> None:
        """A verdict left."""
        self.answered_at, self._waiting = at, True

    def drafted(self, at: float) -> None:
        """A draft came; only the first one behind a verdict tells something."""
        took = at - self.answered_at
        if not self._waiting or took < 0:
            return
        self._waiting = False
        self.own.add(took)
        self.usual.add(took)

    def next_draft(self) -> Expected | None:
        """When the next draft is due; None while nothing is known."""
        seen = self.usual if self.own.mean_s is None else self.own
        if seen.mean_s is None:
            return None
        due = self.answered_at + seen.mean_s
        return Expected(due, due + _PATIENCE * seen.deviation_s)
