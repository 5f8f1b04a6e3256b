"""What a link is like at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_protocol.errors import UserInputError

MAX_DELAY_MS = 60_000.0
#: Beyond this TCP hardly moves, and an emulated link would only look broken.
MAX_LOSS = 0.5


@dataclass(frozen=True, slots=True)
class Conditions:
    """Delay, rate and loss of a link; both directions are alike.

    Args:
        rtt_ms: round trip of a small message on the idle link; each direction takes half of it.
        jitter_ms: what queues on the way add to a round trip on average; each direction adds an
            exponentially distributed delay with a mean of half of it, never less than nothing.
        rate_kbit: kilobits (1000 bits) a second in each direction, shared by all connections; None: no limit.
        loss: chance that a segment is lost, 0.01 for 1 %; TCP sends it again, so it arrives later.

    Raises:
        UserInputError: naming the option that is out of range.
    """

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_kbit: float | None = None
    loss: float = 0.0

    def __post_init__(self) -> None:
        for option, value in (("--rtt-ms", self.rtt_ms), ("--jitter-ms", self.jitter_ms)):
            if not 0.0 <= value <= MAX_DELAY_MS:
                fix = f"Use milliseconds from 0 to {MAX_DELAY_MS:.0f}"
                raise UserInputError(option, f"{value} is out of range", fix)
        if self.rate_kbit is not None and not 0.0 < self.rate_kbit < float("inf"):
            fix = "Use kilobits a second over 0, or leave it out for no limit"
            raise UserInputError("--rate-kbit", f"{self.rate_kbit} is out of range", fix)
        if not 0.0 <= self.loss <= MAX_LOSS:
            fix = f"Use a fraction from 0 to {MAX_LOSS}, e.g. 0.01 for 1 %"
            raise UserInputError("--loss", f"{self.loss} is out of range", fix)

    @property
    def rtt_s(self) -> float:
        """The round trip in seconds."""
        return self.rtt_ms / 1000.0

    @property
    def bytes_per_s(self) -> float | None:
        """The rate in bytes; None: no limit."""
        return None if self.rate_kbit is None else self.rate_kbit * 125.0

    def __str__(self) -> str:
        rate = "no limit" if self.rate_kbit is None else f"{self.rate_kbit:g} kbit/s"
        return f"rtt {self.rtt_ms:g} ms, jitter {self.jitter_ms:g} ms, rate {rate}, loss {self.loss:g}"
