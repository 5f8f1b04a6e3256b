"""What the controller saw and why it goes on as it does, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from draftwire_protocol.messages import Mode


@dataclass(frozen=True, slots=True)
class Explanation:
    """The estimates after a verdict and the decision they led to; times in ms."""

    mode: Mode
    #: Why this mode.
    reason: str
    #: Most tokens drafted and not verified.
    limit: int
    rtt_ms: float
    #: Median distance of the last round trips from R.
    jitter_ms: float
    #: Rate at which the edge's bytes go up; None without evidence of a limit.
    uplink_bytes_per_s: float | None
    #: Wait in the cloud before a forward pass.
    queue_ms: float
    draft_ms: float
    #: t_v(n) = a + b·n.
    verify_a_ms: float
    verify_b_ms: float
    alpha: float
    tpot_ms: float
    #: A token is drafted while its prefix survives with at least this chance.
    bar: float
    #: Time per token of each mode, by the formulas; empty before the first measurement.
    predicted_ms: Mapping[Mode, float]

    def as_json(self) -> dict[str, Any]:
        """Plain types only."""
        return asdict(self) | {
            "mode": self.mode.value,
            "predicted_ms": {mode.value: ms for mode, ms in self.predicted_ms.items()},
        }

    def as_line(self) -> str:
        """For a terminal."""
        predicted = ", ".join(f"{mode.value} {ms:.0f}" for mode, ms in self.predicted_ms.items())
        why = f"{self.reason}; predicted {predicted}" if predicted else self.reason
        rate = self.uplink_bytes_per_s
        uplink = "" if rate is None else f"· up {rate / 1e3:.1f} kB/s "
        return (
            f"R {self.rtt_ms:.0f}±{self.jitter_ms:.0f} ms {uplink}· queue {self.queue_ms:.0f} "
            f"· c_d {self.draft_ms:.1f} · t_v {self.verify_a_ms:.0f}+{self.verify_b_ms:.1f}n "
            f"· α {self.alpha:.2f} · TPOT* {self.tpot_ms:.1f} → {self.mode.value}, up to {self.limit} "
            f"while survival > {self.bar:.2f} ({why})"
        )
