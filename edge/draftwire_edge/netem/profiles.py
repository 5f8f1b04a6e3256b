"""Links by name. docs/netem.md gives the source of every figure, or says that it is an assumption."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from draftwire_edge.netem.conditions import Conditions
from draftwire_protocol.errors import UserInputError


@dataclass(frozen=True, slots=True)
class Step:
    """Conditions for a while.

    Args:
        seconds: how long; infinite in a profile that does not change.
        conditions: of the link meanwhile.
        held: nothing passes at all, as in a handover or a tunnel.
    """

    seconds: float
    conditions: Conditions
    held: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """A link by name: its steps, over and over."""

    name: str
    summary: str
    steps: tuple[Step, ...]

    @property
    def varies(self) -> bool:
        """Whether it changes with time."""
        return len(self.steps) > 1

    def timeline(self) -> Iterator[tuple[float, Step]]:
        """When each step begins, in seconds from the start; endless where the profile varies."""
        begin_s = 0.0
        for step in cycle(self.steps):
            yield begin_s, step
            begin_s += step.seconds
            if math.isinf(begin_s):
                return

    def at(self, elapsed_s: float) -> Step:
        """The step after this many seconds."""
        left_s = elapsed_s % sum(step.seconds for step in self.steps)
        for step in self.steps:
            if left_s < step.seconds:
                return step
            left_s -= step.seconds
        return self.steps[-1]  # rounding took it past the last


def constant(name: str, summary: str, conditions: Conditions) -> Profile:
    """A profile that does not change."""
    return Profile(name, summary, (Step(math.inf, conditions),))


_OPEN_LINE = Conditions(rtt_ms=53, jitter_ms=20, rate_kbit=13_600, loss=0.001)
_CELL_EDGE = Conditions(rtt_ms=110, jitter_ms=80, rate_kbit=2_000, loss=0.02)
_CROWDED = Conditions(rtt_ms=160, jitter_ms=120, rate_kbit=1_000, loss=0.01)
_TRAIN = (
    Step(20.0, _OPEN_LINE),
    Step(6.0, _CELL_EDGE),
    Step(0.5, _CELL_EDGE, held=True),  # a handover
    Step(18.0, _OPEN_LINE),
    Step(5.0, _CROWDED),
    Step(3.0, _CROWDED, held=True),  # a tunnel
)

PROFILES = {
    profile.name: profile
    for profile in (
        constant("lan", "one wired network", Conditions(0.3, 0.1, 1_000_000)),
        constant("wifi", "busy Wi-Fi, then fixed broadband", Conditions(14, 20, 17_000, 0.001)),
        constant("5g", "a phone's 5G, service nearby", Conditions(16, 5, 21_000, 0.001)),
        constant("4g", "a phone's 4G, service nearby", Conditions(53, 15, 13_600, 0.001)),
        constant("cross-continent", "broadband from Europe to California", Conditions(170, 5, 17_000, 0.001)),
        constant("geo-satellite", "a geostationary satellite", Conditions(630, 40, 3_380, 0.005)),
        Profile("train", "4G on a train: changing, with gaps; repeats after 52.5 s", _TRAIN),
    )
}


def find_profile(name: str) -> Profile:
    """A profile by its name.

    Raises:
        UserInputError: there is none of that name.
    """
    if name not in PROFILES:
        raise UserInputError("--profile", f"there is no {name!r}", f"Choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
