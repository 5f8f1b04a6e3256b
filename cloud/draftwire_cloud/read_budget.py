"""How long a pass may be made by prompts that are read in it. Pure."""

from __future__ import annotations

#: A verdict should not take longer than so many passes of a session that is alone.
SLOWEST = 3.0
#: However slow passes are: prompts get this share of what the verdicts take. With a tenth a prompt of 600
#: tokens among 15 sessions took 20 s to its first token.
LEAST_SHARE = 0.25


def read_seconds(verify_s: float, alone_s: float, readers: int, verifiers: int) -> float:
    """Seconds that reading may add to a pass in which others wait for their verdicts.

    Whoever reads a prompt is given as much of the pass as whoever has drafted, and one long prompt no more
    than half of it, while verdicts stay quick by the measure of an idle service.

    Args:
        verify_s: what the pass takes without, in seconds.
        alone_s: what a pass for one session takes, in seconds.
        readers: sessions whose prompt is being read, >= 1.
        verifiers: sessions that wait for a verdict, or may at any moment, >= 1.
    """
    fair = max(1.0, readers / verifiers) * verify_s
    return max(min(fair, SLOWEST * alone_s - verify_s), LEAST_SHARE * verify_s)
