"""What ranks other than 0 do: repeat every step on their own part."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from threading import Thread

import torch
from transformers.utils import logging as transformers_logging

from draftwire_cloud.engine.cache import PackedCache
from draftwire_cloud.engine.packing import make_plan
from draftwire_cloud.engine.target import Target, run
from draftwire_cloud.loading import TargetConfig, load_checked
from draftwire_cloud.tensor_parallel.step import Step
from draftwire_cloud.tensor_parallel.world import Control, World, joined
from draftwire_protocol.errors import DraftwireError


class Follower:
    """Runs rank 0's steps on this rank's part of the model, its keys and values in the same rows as there.

    Args:
        target: this rank's part, its arena in the same state as rank 0's.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def follow(self, control: Control) -> None:
        """Run steps until rank 0 says that there are no more."""
        while (step := control.hear()) is not None:
            self.run(step)

    @torch.inference_mode()
    def run(self, step: Step) -> None:
        """Move the rows that rank 0 has moved, then run the same pass; rank 0 alone looks at its logits."""
        target, arena = self._target, self._target.slots.arena
        for move in step.moves:
            arena.repeat(move)
        plan = make_plan(step.spans, target.policy, arena, target.slots.layout.device)
        run(target.model, plan, PackedCache(plan))


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
    try:
        with joined(world) as control:
            target, _ = load_checked(config, _quietly)
            Follower(target).follow(control)
    except DraftwireError as error:
        # Most likely rank 0 says the same; where it does not, this is why the service ends.
        sys.exit(f"rank {world.rank}: {error}")


def _end_with(alive: Connection) -> None:
    """End this process when the pipe breaks: rank 0 is gone, and a sum may be waiting for it for ever."""
    try:
        alive.recv()
    except (EOFError, OSError):
        sys.stderr.flush()
        os._exit(1)


def _quietly(_: str) -> None:
    """Rank 0 says what happens."""
