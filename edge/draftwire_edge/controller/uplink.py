"""How fast the edge's bytes go up, from rounds whose messages were of different sizes."""

from __future__ import annotations

import math

#: Rounds that differ in size before anything is said.
LEAST_CHANGES = 6.0
#: A rate is believed when bytes explain the time this many times better than chance.
LEAST_SIGMAS = 4.0
#: What clocks and event loops add to a round, in ms: no rounds agree better than that.
NOISE_MS = 0.1


class UplinkRate:
    """ms a byte = Σ Δbytes·Δtime / Σ Δbytes², Δ from each round to the next: a ratio of sums.

    What a larger message takes longer than the one before it is the uplink's; a round trip that drifts
    cancels out, and all that is constant, headers among it. Least squares through the origin, after DESIGN 5.
    A link without a limit, or one whose jitter hides it, has no known rate.

    Args:
        decay: weight a round keeps when the next one comes.
    """

    def __init__(self, decay: float = 0.98) -> None:
        self._decay = decay
        self._last: tuple[int, float] | None = None
        self._rounds = self._changes = 0.0
        self._bytes_bytes = self._bytes_ms = self._ms_ms = 0.0

    def add(self, num_bytes: int, ms: float) -> None:
        """Take in one round.

        Args:
            num_bytes: payload of the message that began it.
            ms: until its answer was there, without the server's time.
        """
        last, self._last = self._last, (num_bytes, ms)
        if last is None:
            return
        more_bytes, more_ms = num_bytes - last[0], ms - last[1]
        keep = self._decay
        self._rounds = self._rounds * keep + 1.0
        self._changes = self._changes * keep + (more_bytes != 0)
        self._bytes_bytes = self._bytes_bytes * keep + more_bytes**2
        self._bytes_ms = self._bytes_ms * keep + more_bytes * more_ms
        self._ms_ms = self._ms_ms * keep + more_ms**2

    @property
    def ms_per_byte(self) -> float:
        """1 / rate; 0 while there is no evidence."""
        if self._changes < LEAST_CHANGES or self._bytes_bytes <= 0.0:
            return 0.0
        slope = self._bytes_ms / self._bytes_bytes
        unexplained = max(self._ms_ms - slope * self._bytes_ms, 0.0) / self._rounds
        error = math.sqrt((unexplained + NOISE_MS**2) / self._bytes_bytes)
        return slope if slope > LEAST_SIGMAS * error else 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """The rate; None while there is no evidence of a limit."""
        return 1e3 / self.ms_per_byte if self.ms_per_byte else None
