"""How much of each drafted block is worth verifying when several sessions share a pass. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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
