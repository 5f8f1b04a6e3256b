"""Whether to wait a moment for more sessions before a forward pass. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Expected(NamedTuple):
    """When a draft is due, in seconds."""

    usually: float
    #: Later than this it is not waited for.
    latest: float


def wait_until(now: float, ready: int, expected: Iterable[Expected], pass_s: float) -> float | None:
    """When to start the pass, in seconds on the clock of ``now``; None for at once.

    Waiting d seconds for the k-th draft from now delays each of the ready sessions by d, and saves each of
    the k newcomers the rest of a pass that they would have missed: together ``k (pass - d) - ready d``
    session-seconds. The k that saves most is waited for, if any saves. With nobody expected, or an idle
    service, there is no wait at all.

    Args:
        now: seconds.
        ready: sessions with work.
        expected: of each session that drafts.
        pass_s: what a pass usually takes, in seconds.
    """
    if not ready:
        return None
    soon = sorted(Expected(_due(one, now), one.latest) for one in expected if now < one.latest)
    best, saved = 0, 0.0
    for k, one in enumerate(soon, 1):
        saving = k * pass_s - (k + ready) * (one.usually - now)
        if saving > saved:
            best, saved = k, saving
    if not best:
        return None
    # They are waited for until they count as late, but never longer than pays.
    longest = now + best * pass_s / (best + ready)
    return min(max(one.latest for one in soon[:best]), longest)


def _due(one: Expected, now: float) -> float:
    """When a draft will come that is not here yet: one that should be here is as likely at any time left."""
    return one.usually if one.usually > now else (now + one.latest) / 2
