"""Rank 0's half of a split target: what the engine loop sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_cloud.engine.errors import LostRankError
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.target import Target
from draftwire_cloud.tensor_parallel.step import LedgerStore
from draftwire_cloud.tensor_parallel.world import Control


class TensorParallelTarget(Target):
    """A `Target` whose every pass the other ranks run along; the engine loop need not know.

    Args:
        part: rank 0's part, as `Target.load` made it on every rank. Its slots must all be released.
        control: tells the other ranks.
    """

    def __init__(self, part: Target, control: Control) -> None:
        self._ledger = LedgerStore(part.slots.layout, part.slots.budget_bytes)
        super().__init__(part.model, part.facts, self._ledger, part.policy)
        self._control = control
        self._announced = False

    def forward(self, spans: Sequence[Span]) -> list[torch.Tensor]:
        """As `Target.forward`: the same arguments, results and errors.

        Raises:
            LostRankError: a pass that was announced failed on some rank; every later one would too.
        """
        self._announced = False
        try:
            return super().forward(spans)
        except Exception as error:
            if not self._announced:
                raise
            raise LostRankError(
                f"the ranks of the split model fell out of step: {type(error).__name__}: {error}"
            ) from error

    def _announce(self, spans: Sequence[Span]) -> None:
        self._announced = True
        self._control.say(self._ledger.step(spans))

    def close(self) -> None:
        """Let the other ranks go; they end by themselves."""
        self._control.say(None)
