"""The link as rounds show it: R, its jitter, and what a message's bytes add."""

from __future__ import annotations

from collections import deque
from statistics import median

from draftwire_edge.controller.estimators import FadingLine
from draftwire_edge.controller.uplink import UplinkRate

#: Rounds that R is the median of: one stall among them changes nothing.
WINDOW = 5
#: Rounds whose shortest tells whether there is a link at all, and what it takes at least, in ms.
LEAST_WINDOW, LEAST_MS = 32, 5.0


class LinkEstimate:
    """R + bytes / rate: the time of a round without the server's work, in ms."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._longer: deque[float] = deque(maxlen=LEAST_WINDOW)
        self._uplink = UplinkRate()
        #: Payload of a draft of n tokens; bytes a message are few beside those of its tokens.
        self._sizes = FadingLine(prior_slope=0.2)

    def add(self, ms: float, num_bytes: int = 0) -> None:
        """Take in one message and its answer, without the server's time.

        Args:
            ms: between them.
            num_bytes: payload of the message where it was a draft. What opens a stream carries more than its
                payload, so it says nothing of the rate: 0.
        """
        ms = max(0.0, ms)
        self._recent.append((ms, num_bytes))
        self._longer.append(ms)
        if num_bytes:
            self._uplink.add(num_bytes, ms)

    def add_size(self, num_tokens: int, num_bytes: int) -> None:
        """Take in how long a draft was."""
        self._sizes.add(num_tokens, num_bytes)

    @property
    def rtt_ms(self) -> float:
        """R, for a message of no bytes; 0 while nothing was seen."""
        return median(self._without_bytes()) if self._recent else 0.0

    @property
    def may_be_none(self) -> bool:
        """Whether both ends may share a machine.

        There the work of each delays the other's rounds, so R may look long; but some rounds are short, and
        no round is shorter than a link.
        """
        return min(self._longer, default=LEAST_MS) < LEAST_MS

    @property
    def jitter_ms(self) -> float:
        """Median distance of the last rounds from R; 0 while nothing was seen."""
        middle = self.rtt_ms
        return median(abs(ms - middle) for ms in self._without_bytes()) if self._recent else 0.0

    @property
    def uplink_bytes_per_s(self) -> float | None:
        """Rate at which the edge's bytes go up; None without evidence of a limit."""
        return self._uplink.bytes_per_s

    @property
    def token_ms(self) -> float:
        """What one more token in a draft adds to its way up."""
        return self._sizes.slope * self._uplink.ms_per_byte

    def round_ms(self, num_tokens: int) -> float:
        """R + bytes / rate of a draft of so many tokens."""
        return self.rtt_ms + self._sizes.at(num_tokens) * self._uplink.ms_per_byte

    def _without_bytes(self) -> list[float]:
        ms_per_byte = self._uplink.ms_per_byte
        return [max(0.0, ms - num_bytes * ms_per_byte) for ms, num_bytes in self._recent]
