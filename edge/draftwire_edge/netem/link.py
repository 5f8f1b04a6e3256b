"""A link: conditions that may change at any moment, and what all its connections share."""

from __future__ import annotations

from random import Random

from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.delay_line import Bottleneck, DelayLine


class Link:
    """Two directions with one set of conditions; pure, the time is an argument.

    ``conditions`` may be replaced at any moment: it holds for what arrives from then on. ``frozen`` holds
    everything back. Bytes under way keep their times, and later ones stay behind them.

    Args:
        conditions: to begin with.
        seed: same seed, same arrivals, same times.
    """

    def __init__(self, conditions: Conditions, seed: int = 0) -> None:
        self.conditions = conditions
        self.frozen = False
        self.seed = seed
        self.connections = 0
        self._up = Bottleneck()
        self._down = Bottleneck()

    def open(self, now_s: float) -> tuple[DelayLine, DelayLine]:
        """Lines up and down of a new connection.

        The system accepts a connection at once, a real one takes a round trip (RFC 9293 section 3.5): the
        client's first bytes arrive after 1.5 R at the earliest, the server's, which knows of the client
        only then, after 2 R.
        """
        self.connections += 1
        rtt_s = self.conditions.rtt_s
        return (
            DelayLine(self._up, self._rng("up"), now_s + 1.5 * rtt_s),
            DelayLine(self._down, self._rng("down"), now_s + 2.0 * rtt_s),
        )

    def _rng(self, direction: str) -> Random:
        """A generator that depends on the seed, the connection's number and the direction only."""
        return Random(f"{self.seed}/{self.connections}/{direction}")  # noqa: S311  # nothing secret
