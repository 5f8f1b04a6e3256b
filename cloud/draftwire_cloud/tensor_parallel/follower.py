"""What ranks other than 0 do: repeat every step on their own part."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from threading import Thread

from transformers.utils import logging as transformers_logging

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target
from draftwire_cloud.loading import TargetConfig, load_checked
from draftwire_cloud.tensor_parallel.step import Step, StepSpan
from draftwire_cloud.tensor_parallel.world import Control, World, joined


class Follower:
    """Runs rank 0's steps on this rank's part of the model, on slots of its own.

    Args:
        target: this rank's part.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._slots: dict[int, Slot] = {}

    def follow(self, control: Control) -> None:
        """Run steps until rank 0 says that there are no more."""
        while (step := control.hear()) is not None:
            self.run(step)

    def run(self, step: Step) -> None:
        """Bring the slots to where rank 0's are, then run the same pass.

        Raises:
            ValueError: this rank's slots are not what rank 0 believes; it must not go on.
        """
        for number in step.released:
            self._target.slots.release(self._slots.pop(number))
        for number, length in step.cut:
            self._slots[number].truncate(length)
        self._target.forward([self._span(span) for span in step.spans])

    def _span(self, told: StepSpan) -> Span:
        slot = self._slots.get(told.slot)
        if slot is None:
            slot = self._slots[told.slot] = self._target.slots.open(told.capacity)
        slot.capacity = told.capacity
        if slot.length != told.past:
            raise ValueError(f"slot {told.slot} holds {slot.length} tokens here, {told.past} on rank 0")
        return Span(slot, told.ids, told.num_logits)


def follow(config: TargetConfig, world: World, alive: Connection | None = None) -> None:
    """A rank's whole life: join, load, check and follow rank 0 to its end; blocking.

    Args:
        config: what to load, as on rank 0.
        world: this rank's place.
        alive: breaks when rank 0's process ends, whatever it died of.
    """
    # Rank 0 decides when the service ends, also where a signal goes to every process at once.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if alive is not None:
        Thread(target=_end_with, args=(alive,), daemon=True).start()
    transformers_logging.disable_progress_bar()
    with joined(world) as control:
        target, _ = load_checked(config, _quietly)
        Follower(target).follow(control)


def _end_with(alive: Connection) -> None:
    """End this process when the pipe breaks: rank 0 is gone, and a sum may be waiting for it for ever."""
    try:
        alive.recv()
    except (EOFError, OSError):
        sys.stderr.flush()
        os._exit(1)


def _quietly(_: str) -> None:
    """Rank 0 says what happens."""
