"""What edges saw: of a verdict, of a text, and of all texts that were written at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwire_protocol.messages import ServerTiming, Usage


@dataclass(frozen=True, slots=True)
class Seen:
    """A verdict as its edge saw it."""

    #: Seconds from the draft's sending; of the cloud alone, from the verdict before.
    latency_s: float
    #: When it came.
    at_s: float
    tokens: int
    timing: ServerTiming


@dataclass(slots=True)
class Written:
    """One text and what it took; times are those of one clock."""

    prompt_tokens: int
    asked_at_s: float
    tokens: list[int] = field(default_factory=list)
    #: The verdict that ends the prompt; its latency is the time to the first token.
    first: Seen | None = None
    verdicts: list[Seen] = field(default_factory=list)
    cached: int = 0
    usage: Usage = field(default_factory=lambda: Usage(0))

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.first.latency_s if self.first else 0.0

    @property
    def first_at_s(self) -> float:
        """When its first token came."""
        return self.first.at_s if self.first else self.asked_at_s

    @property
    def ended_at_s(self) -> float:
        """When its last token came."""
        return self.verdicts[-1].at_s if self.verdicts else self.first_at_s

    @property
    def seen(self) -> list[Seen]:
        """Every verdict, the first one included."""
        return [*([self.first] if self.first else []), *self.verdicts]

    def note(self, seen: Seen, kept: Sequence[int]) -> None:
        """A verdict came, and committed tokens."""
        self.tokens += kept
        if self.first is None:
            self.first = seen
        else:
            self.verdicts.append(seen)

    def as_json(self) -> dict[str, Any]:
        """Without the tokens themselves; a column a figure."""
        seen = self.seen
        return {
            "prompt_tokens": self.prompt_tokens,
            "tokens": len(self.tokens),
            "cached": self.cached,
            "target_passes": self.usage.target_passes,
            "ttft_ms": round(1e3 * self.ttft_s, 3),
            "latency_ms": [round(1e3 * one.latency_s, 3) for one in seen],
            "committed": [one.tokens for one in seen],
            "batch_size": [one.timing.batch_size for one in seen],
            "queue_us": [one.timing.queue_us for one in seen],
            "forward_us": [one.timing.forward_us for one in seen],
            "other_us": [one.timing.other_us for one in seen],
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """The texts of N edges, written at once in one arm: the same number of each, one after the other."""

    arm: str
    clients: int
    turn: int
    seconds: float
    texts: Sequence[Written]
    identical: bool
    #: Where the arm has no edges of ours, only their number of tokens is known.
    other_tokens: int = 0
    #: Texts of each edge; they stand one behind the other.
    in_a_row: int = 1

    @property
    def tokens(self) -> int:
        """Written in all."""
        return self.other_tokens + sum(len(text.tokens) for text in self.texts)

    @property
    def edges(self) -> list[Sequence[Written]]:
        """The texts of each edge, as it wrote them."""
        return [self.texts[i : i + self.in_a_row] for i in range(0, len(self.texts), self.in_a_row)]

    def as_json(self) -> dict[str, Any]:
        """With every text."""
        return {
            "arm": self.arm,
            "clients": self.clients,
            "turn": self.turn,
            "in_a_row": self.in_a_row,
            "seconds": round(self.seconds, 4),
            "tokens": self.tokens,
            "identical": self.identical,
            "texts": [text.as_json() for text in self.texts],
        }
