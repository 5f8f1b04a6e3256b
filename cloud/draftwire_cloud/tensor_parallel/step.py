"""A forward pass as rank 0 tells it to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from draftwire_cloud.engine.arena import Move
from draftwire_cloud.engine.packing import Span


class StepSpan(NamedTuple):
    """A `Span` without its slot: new tokens, and where in the arena they go."""

    ids: list[int]
    num_logits: int
    past: int
    first_row: int

    @classmethod
    def of(cls, span: Span) -> Self:
        """As a span lies now."""
        return cls(list(span.ids), span.num_logits, span.past, span.first_row)


class Step(NamedTuple):
    """What a rank does to its arena, in this order, and then runs.

    It names rows, not slots: which rows a session has, and when that changes, only rank 0 decides, so
    there is no second account of it that could differ.
    """

    moves: Sequence[Move]
    spans: Sequence[StepSpan]
