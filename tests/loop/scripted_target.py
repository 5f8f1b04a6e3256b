"""A target that writes a given text, whatever it is fed: for cases that need particular tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.probe import ExactnessReport
from draftwire_cloud.engine.slots import KvCounts
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.session import Vocabulary
from draftwire_protocol.fingerprint import piece_hashes
from draftwire_protocol.messages import ModelCard


@dataclass(eq=False)
class ScriptedSlot:
    """Remembers ids."""

    capacity: int
    ids: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, n: int) -> None:
        del self.ids[n:]


class ScriptedStore:
    """Counts open slots, each as one block of one byte."""

    #: There is always room.
    free_tokens = budget_bytes = n_free_blocks = 1 << 30

    def __init__(self) -> None:
        self.slots: set[ScriptedSlot] = set()
        self.counts = KvCounts()

    @property
    def n_taken_blocks(self) -> int:
        return len(self.slots)

    @property
    def used_bytes(self) -> int:
        return len(self.slots)

    def open(self, capacity: int) -> ScriptedSlot:
        slot = ScriptedSlot(capacity)
        self.slots.add(slot)
        return slot

    def release(self, slot: ScriptedSlot) -> None:
        self.slots.remove(slot)

    def empty(self, slot: ScriptedSlot) -> None:
        slot.ids.clear()

    def inherit(self, slot: ScriptedSlot, source: ScriptedSlot, n: int) -> None:
        slot.ids[:] = source.ids[:n]


@dataclass
class ScriptedFacts:
    """What the service asks of a target."""

    context_length: int


class ScriptedTarget:
    """The token after position ``prompt_length - 1 + i`` is ``script[i]``, then ``filler``."""

    def __init__(self, script: Sequence[int], prompt_length: int, width: int, context_length: int) -> None:
        self.script, self.prompt_length, self.width = script, prompt_length, width
        self.facts = ScriptedFacts(context_length)
        self.slots = ScriptedStore()
        #: Cleared, it holds the forward pass back: what an operator sees when a GPU hangs.
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.fed = 0
        #: What a forward pass takes at least.
        self.seconds = 0.0

    def forward(self, spans: Sequence[Any]) -> list[torch.Tensor]:
        self.entered.set()
        self.go.wait(timeout=30)
        time.sleep(self.seconds)
        return [self._rows(span) for span in spans]

    def _rows(self, span: Span) -> torch.Tensor:
        span.slot.ids.extend(span.ids)
        self.fed += len(span.ids)
        rows = np.zeros((span.num_logits, self.width), np.float32)
        for i in range(span.num_logits):
            at = span.slot.length - span.num_logits + i + 1 - self.prompt_length
            rows[i, self.script[at] if at < len(self.script) else 0] = 5.0
        return torch.from_numpy(rows)


def scripted(
    pieces: Sequence[bytes],
    script: Sequence[int],
    *,
    prompt_length: int,
    eos: Sequence[int] = (),
    pad: int = 0,
    context_length: int = 1000,
) -> tuple[LoadedTarget, ScriptedTarget]:
    """A loaded target that writes ``script``; ``pad`` rows of the logits are padding."""
    target = ScriptedTarget(script, prompt_length, len(pieces) + pad, context_length)
    vocabulary = Vocabulary(pieces, frozenset(eos), frozenset(eos))
    card = ModelCard(
        "scripted", "Scripted", len(pieces) + pad, len(pieces), tuple(eos), None, tuple(eos),
        piece_hashes(pieces), b"", context_length, "float32", exact_shapes=True,
    )  # fmt: skip
    report = ExactnessReport(0, 0, 0, 0.0, 0.0)
    return LoadedTarget(target, vocabulary, card, report), target  # type: ignore[arg-type]
