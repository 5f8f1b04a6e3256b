"""How long a text takes to be as fast as the cloud alone again, once its link is as before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from draftwire_sim.bench.arms import CLOUD_ALONE, DRAFT_ALONE
from draftwire_sim.bench.texts import Text

#: Tokens over which a pace is taken, and how much slower than the cloud alone counts as equal.
PACE_TOKENS, TOLERANCE = 16, 1.03


def recoveries(texts: Sequence[Text], changed_at_s: float) -> dict[str, dict[str, list[float | None]]]:
    """Arm -> link -> of each text, seconds until ``recovery_s``.

    Args:
        texts: all of a run; those of the cloud alone say how fast that is.
        changed_at_s: when the link changed for the last time, from the begin of a text.
    """
    alone = {(one.link, one.prompt): one.tpot_ms for one in texts if one.arm == CLOUD_ALONE}
    found: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for one in texts:
        if (at := (one.link, one.prompt)) in alone and one.arm != DRAFT_ALONE:
            seconds = recovery_s(one.token_times_s, changed_at_s, alone[at] / 1e3)
            found[one.arm][one.link].append(seconds)
    return {arm: dict(row) for arm, row in found.items()}


def recovery_s(token_times_s: Sequence[float], changed_at_s: float, alone_s: float) -> float | None:
    """Seconds after a change from which on every ``PACE_TOKENS`` tokens take no longer than alone.

    Args:
        token_times_s: when each token was there, from the begin of the text.
        changed_at_s: when the link changed for the last time.
        alone_s: time per token of the cloud alone.

    Returns:
        None where the last of them still took longer, or the text was over before.
    """
    after = [index for index, at_s in enumerate(token_times_s) if at_s >= changed_at_s]
    starts = [index for index in after if index + PACE_TOKENS < len(token_times_s)]
    if not starts:
        return None
    limit_s = TOLERANCE * PACE_TOKENS * alone_s
    slow = [i for i in starts if token_times_s[i + PACE_TOKENS] - token_times_s[i] > limit_s]
    if not slow:
        # The first token may have been on its way; what it took beyond one of the cloud's own is a stall.
        return round(max(0.0, token_times_s[starts[0]] - changed_at_s - alone_s), 4)
    if slow[-1] == starts[-1]:
        return None
    return round(token_times_s[slow[-1] + 1] - changed_at_s, 4)
