"""Whether to wait a moment for one more session before a forward pass. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: A draft that is later than it usually is by this share of its usual time is not waited for any longer.
_LATE = 0.25


def wait_until(
    now: float, ready: int, expected: Iterable[tuple[float, float]], pass_s: float
) -> float | None:
    """When to start the pass, in seconds on the clock of ``now``; None for at once.

    Waiting d seconds for the next draft delays each of the ready sessions by d; not waiting delays the
    newcomer by the rest of the pass, ``pass - d``. So waiting pays while ``ready d < pass - d``. With
    nobody expected, or an idle service, there is no wait at all.

    Args:
        now: seconds.
        ready: sessions with work.
        expected: of each session that drafts: when its last verdict left, and how long it usually takes
            to answer, in seconds.
        pass_s: what a pass usually takes, in seconds.
    """
    longest = pass_s / (ready + 1)
    arrivals = (max(left + usual, now) for left, usual in expected if now < left + usual * (1 + _LATE))
    soon = [at for at in arrivals if at - now < longest]
    if not ready or not soon:
        return None
    at = min(soon)
    # It is waited for until it counts as late, but never longer than pays.
    return min(at + max(at - now, 0.0) * _LATE + 1e-3, now + longest)
