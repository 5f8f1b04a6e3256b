"""Who is who among the ranks, and how they meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from draftwire_cloud.engine.precision import pick_device
from draftwire_cloud.tensor_parallel.step import Step
from draftwire_protocol.errors import UserInputError

_HOST = "127.0.0.1"
#: How long ranks wait for one another while they load, which may take one of them much longer.
_MEETING = timedelta(minutes=30)
#: How long a rank waits for the next step: for as long as nobody asks for anything. A dead peer ends it.
_IDLE = timedelta(days=365)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class World:
    """One rank's place among all of them."""

    rank: int
    size: int
    #: Number among the ranks of this machine: which of its devices to take.
    local_rank: int
    #: Where ranks that we started meet; None where ``torchrun`` has said so in the environment.
    port: int | None = None


def torchrun_world(n_ranks: int) -> World | None:
    """This process' place if ``torchrun`` started it, else None.

    Args:
        n_ranks: what the operator asked for.

    Raises:
        UserInputError: the two disagree.
    """
    if not distributed.is_torchelastic_launched():
        return None
    size = int(os.environ["WORLD_SIZE"])
    if size != n_ranks:
        raise UserInputError(
            "--tp",
            f"torchrun started {size} processes, but the model is to be split over {n_ranks}",
            f"Say --tp {size}, or leave torchrun out: --tp starts its own processes",
        )
    return World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))


def require_devices(n_ranks: int) -> None:
    """Check that this machine can hold so many ranks.

    Raises:
        UserInputError: it has fewer GPUs, or only one that cannot be shared.
    """
    kind = pick_device().type
    if kind not in _BACKENDS:
        raise UserInputError("--tp", f"a model cannot be split on {kind}", "Leave --tp out")
    if kind == "cuda" and torch.cuda.device_count() < n_ranks:
        have = torch.cuda.device_count()
        raise UserInputError("--tp", f"{n_ranks} GPUs wanted, {have} seen", f"Say at most --tp {have}")


def open_meeting() -> tuple[socket.socket, int]:
    """A listening socket on the loopback address for ranks to meet at, and its port."""
    listener = socket.create_server((_HOST, 0), backlog=128)
    return listener, listener.getsockname()[1]


@contextmanager
def joined(world: World, listener: socket.socket | None = None) -> Iterator[Control]:
    """Join the others; leaves them at the end.

    Args:
        world: this process' place.
        listener: rank 0's, from `open_meeting`.
    """
    kind = pick_device().type
    if kind == "cuda":
        torch.cuda.set_device(world.local_rank)
    if world.port is not None:
        # transformers picks each rank's device by this.
        os.environ["LOCAL_RANK"] = str(world.local_rank)
        # Whatever the name of this machine resolves to, its own ranks need nothing but loopback.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if os.uname().sysname == "Darwin" else "lo")
    distributed.init_process_group(
        _BACKENDS[kind],
        store=_store(world, listener),
        rank=world.rank,
        world_size=world.size,
        timeout=_MEETING,
        device_id=torch.device(kind, world.local_rank) if kind == "cuda" else None,
    )
    try:
        yield Control()
    finally:
        distributed.destroy_process_group()


def _store(world: World, listener: socket.socket | None) -> Any:
    """Where ranks tell one another their addresses; None where ``torchrun`` has made one."""
    if world.port is None:
        return None
    # Given no socket, rank 0 would listen on every network.
    descriptor = None if listener is None else listener.detach()
    return distributed.TCPStore(  # type: ignore[attr-defined]  # torch re-exports it without saying so
        _HOST,
        world.port,
        world.size,
        is_master=world.rank == 0,
        timeout=_MEETING,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


class Control:
    """The line on which rank 0 says what comes next; over the CPU, so that waiting costs no device."""

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=_IDLE)

    def say(self, step: Step | None) -> None:
        """Rank 0: announce a step, or with None that there will be no more."""
        distributed.broadcast_object_list([step], src=0, group=self._group)

    def hear(self) -> Step | None:
        """Other ranks: wait for what rank 0 says."""
        words: list[Step | None] = [None]
        distributed.broadcast_object_list(words, src=0, group=self._group)
        return words[0]
