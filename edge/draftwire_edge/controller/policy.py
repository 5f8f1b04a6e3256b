"""What the user said about drafting, and what the controller answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Mode


class Prefer(Enum):
    """What counts when modes are compared: the user's time, or the cloud's forward passes."""

    LATENCY = "latency"
    BALANCED = "balanced"
    COST = "cost"

    @property
    def pass_weight(self) -> float:
        """What one target pass a token weighs, in times per token of the cloud alone."""
        return {Prefer.LATENCY: 0.0, Prefer.BALANCED: 0.5, Prefer.COST: 3.0}[self]

    @property
    def draft_weight(self) -> float:
        """What drafting counts while the text does not wait for it: energy, not time."""
        return {Prefer.LATENCY: 0.03, Prefer.BALANCED: 0.3, Prefer.COST: 1.0}[self]


@dataclass(frozen=True, slots=True)
class GammaPolicy:
    """What the user said about gamma and mode.

    Raises:
        UserInputError: gamma below 1 or too large.
    """

    #: Fixed γ, or None for the stop rule.
    gamma: int | None = None
    #: Fixed mode, or None to choose the cheaper one.
    mode: Mode | None = None
    #: What is cheap.
    prefer: Prefer = Prefer.LATENCY

    def __post_init__(self) -> None:
        if self.gamma is None:
            return
        if self.gamma < 1:
            fix = "Use at least 1, or --mode cloud to stream without drafting"
            raise UserInputError("--gamma", f"{self.gamma} is less than 1", fix)
        if self.gamma > MAX_DRAFT_TOKENS:
            raise UserInputError(
                "--gamma", f"{self.gamma} is more than {MAX_DRAFT_TOKENS}", "Use fewer, or auto"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """How to take turns until the next verdict."""

    mode: Mode
    #: Most tokens drafted and not verified; the stop rule may end the draft earlier.
    limit: int = 0
