"""How much of each drafted block is worth verifying when several sessions share a pass. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

#: A session whose drafts all stay is told this at most.
_MOST = 32


def survival_bar(survivals: Sequence[Sequence[float]], fixed_s: float, row_s: float) -> float:
    """The survival below which one more drafted token would lower a pass's tokens a second.

    A token more pays while ``survival / row > yield / time`` (see `choose_lengths`), so that the bar is
    ``row yield / time``.

    Args:
        survivals: of the tokens that are verified, for each session.
        fixed_s: seconds a pass takes whatever is in it.
        row_s: seconds one more token takes.
    """
    gain = len(survivals) + sum(map(sum, survivals))
    seconds = fixed_s + row_s * (len(survivals) + sum(map(len, survivals)))
    return gain * row_s / seconds if seconds > 0 else 0.0


def budget(acceptance: float, bar: float) -> int:
    """Most drafted tokens of which the last one's survival is above the bar; 0 for any number.

    Args:
        acceptance: chance that a drafted token stays, in (0, 1); of decided tokens only.
        bar: see `survival_bar`; 0 where nothing else is in the pass.
    """
    if bar <= 0:
        return 0
    if bar >= 1:
        return 1
    return max(1, min(_MOST, math.ceil(math.log(bar) / math.log(acceptance)) - 1))


def choose_lengths(survivals: Sequence[Sequence[float]], fixed_s: float, row_s: float) -> list[int]:
    """Drafted tokens to verify of each session, the highest expected gain first.

    A pass that verifies n drafted tokens of k sessions yields ``k + sum(survival)`` tokens in
    ``fixed + row (k + n)`` seconds. One more token pays when its gain a second beats what the pass
    yields without it: ``survival / row > yield / time``. Taken in falling order this maximises tokens a
    second over the pass (a ratio of sums is raised exactly by terms with a higher ratio).

    Args:
        survivals: for each session the chance that its block survives up to each token, falling. Whoever
            accepts by probability must not let a token's own value into its chance: leaving a token out
            because of its value biases the text (DESIGN 3).
        fixed_s: seconds a pass takes whatever is in it.
        row_s: seconds one more token takes.

    Returns:
        How many of each block; a prefix each, as chances fall.
    """
    lengths = [0] * len(survivals)
    gain = float(len(survivals))
    seconds = fixed_s + row_s * len(survivals)
    first = [(-chances[0], session) for session, chances in enumerate(survivals) if chances]
    heapq.heapify(first)
    while first:
        chance, session = heapq.heappop(first)
        if -chance * seconds <= gain * row_s:
            break
        gain, seconds = gain - chance, seconds + row_s
        lengths[session] += 1
        if lengths[session] < len(survivals[session]):
            # A later token never has the better chance, whatever the estimate says.
            heapq.heappush(first, (max(chance, -survivals[session][lengths[session]]), session))
    return lengths
