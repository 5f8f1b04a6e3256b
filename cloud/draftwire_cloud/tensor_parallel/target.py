"""Rank 0's half of a split target: what the engine loop sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_cloud.engine.errors import LostRankError
from draftwire_cloud.engine.packing import Plan, Span
from draftwire_cloud.engine.target import Target
from draftwire_cloud.tensor_parallel.step import Step, StepSpan
from draftwire_cloud.tensor_parallel.world import Control


class TensorParallelTarget(Target):
    """A `Target` whose every pass the other ranks run along; the engine loop need not know.

    Args:
        part: rank 0's part, as `Target.load` made it on every rank, its arena in the same state on all.
        control: tells the other ranks.
    """

    def __init__(self, part: Target, control: Control) -> None:
        super().__init__(part.model, part.facts, part.slots, part.policy)
        self._control = control
        self.slots.arena.journal = []

    def _pass(self, spans: Sequence[Span], plan: Plan) -> torch.Tensor:
        """Announce a pass and run it.

        Raises:
            LostRankError: it failed on some rank; every later one would too.
        """
        arena = self.slots.arena
        moves, arena.journal = arena.journal or [], []
        try:
            self._control.say(Step(moves, [StepSpan.of(span) for span in spans]))
            return super()._pass(spans, plan)
        except Exception as error:
            raise LostRankError(
                f"the ranks of the split model fell out of step: {type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        """Let the other ranks go; they end by themselves."""
        self._control.say(None)
