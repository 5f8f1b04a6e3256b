"""Rank 0's hold on the other ranks: it starts them, notices when one ends, and lets them go."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as ConcurrentFuture
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from threading import Event, Thread
from typing import Any, Self, TypeVar

from draftwire_cloud.engine.errors import LostRankError
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_cloud.tensor_parallel.follower import follow
from draftwire_cloud.tensor_parallel.target import TensorParallelTarget
from draftwire_cloud.tensor_parallel.world import World, joined, open_meeting
from draftwire_protocol.errors import DraftwireError

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: How far apart a rank's end and the failure of rank 0's own work may be noticed, in seconds.
_OWN_WORDS_S = 2.0
#: And how long until the process ends, even out of a sum that waits for the dead.
_LAST_RESORT_S = 15.0
#: How long the others may take to end when they are let go, in seconds.
_LEAVE_S = 10.0


class RankGroup:
    """Rank 0 of a split target; an async context manager.

    Args:
        config: what to load; ``ranks`` says over how many processes.
        world: this process' place where ``torchrun`` started all ranks (and watches them), else None:
            then the others are started here, as processes of this machine.
    """

    def __init__(self, config: TargetConfig, world: World | None = None) -> None:
        # torchrun has said already how many threads a process of its may use.
        mine = config.threads is None and world is None
        self._config = replace(config, threads=_share(config.ranks)) if mine else config
        self._world = world
        self._processes: list[SpawnProcess] = []
        self._stack = ExitStack()
        self._leaving, self._left, self._loading = Event(), Event(), Event()
        self._target: TensorParallelTarget | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the others go: politely where they are in step, else for good."""
        self._leaving.set()
        if kind is None and self._target is not None and not self._lost.done():
            await asyncio.to_thread(self._target.close)
            await asyncio.to_thread(self._wait_for_others)
        for process in self._processes:
            process.kill()
        if not self._lost.done() and not self._loading.is_set():
            await asyncio.to_thread(self._stack.close)
        self._left.set()

    async def load(self, say: Callable[[str], None]) -> LoadedTarget:
        """Start the others and load the target together with them.

        Raises:
            LostRankError: a rank ended on the way.
            UnsupportedModelError: the packed engine cannot serve this architecture.
        """
        return await self.guard(_in_daemon(partial(self._load, say)))

    def _load(self, say: Callable[[str], None]) -> LoadedTarget:
        self._loading.set()
        try:
            return self._load_with_others(say)
        finally:
            self._loading.clear()

    def _load_with_others(self, say: Callable[[str], None]) -> LoadedTarget:
        world, listener = self._world, None
        if world is None:
            listener, port = open_meeting()
            world = World(0, self._config.ranks, 0, port)
            self._start_others(port)
        say(f"splitting the model over {world.size} ranks")
        control = self._stack.enter_context(joined(world, listener))
        loaded = load_target(self._config, say)
        self._target = TensorParallelTarget(loaded.target, control)
        return replace(loaded, target=self._target)

    def _start_others(self, port: int) -> None:
        """One process a rank; each holds the end of a pipe that breaks with this process."""
        spawn = multiprocessing.get_context("spawn")
        for rank in range(1, self._config.ranks):
            theirs, ours = spawn.Pipe(duplex=False)
            world = World(rank, self._config.ranks, rank, port)
            process = spawn.Process(target=follow, args=(self._config, world, theirs), daemon=True)
            process.start()
            theirs.close()
            self._stack.callback(ours.close)
            self._processes.append(process)
        Thread(target=self._watch, name="ranks", daemon=True).start()

    def _watch(self) -> None:
        """Notice the first rank that ends before it is let go."""
        ended = connection.wait([process.sentinel for process in self._processes])
        if self._leaving.is_set():
            return
        rank, process = next((i, p) for i, p in enumerate(self._processes, 1) if p.sentinel in ended)
        process.join()
        how = f"ended with exit code {process.exitcode}"
        why = f"rank {rank} of the split model {how}; start the service again"
        self._loop.call_soon_threadsafe(self._note_loss, why)
        if not self._left.wait(_LAST_RESORT_S):
            # A thread is inside a sum that waits for the dead, and nothing else can end it.
            _log.critical(why)
            os._exit(1)

    def _note_loss(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    async def guard(self, work: Awaitable[T]) -> T:
        """The result of some work, for as long as every rank is there.

        Raises:
            LostRankError: one ended.
        """
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._lost}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and _speaks_for_itself(task.exception()):
            return task.result()
        # A broken sum and the end of the process behind it are noticed in any order.
        await asyncio.wait(either, timeout=_OWN_WORDS_S)
        if not self._lost.done():
            return task.result()
        if not task.done():
            task.cancel()
            raise LostRankError(self._lost.result())
        if _speaks_for_itself(task.exception()):
            return task.result()
        raise LostRankError(self._lost.result()) from task.exception()

    def _wait_for_others(self) -> None:
        for process in self._processes:
            process.join(_LEAVE_S)


def _in_daemon(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do blocking work on a thread that the process need not wait for: it may meet nobody any more."""
    done: ConcurrentFuture[T] = ConcurrentFuture()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            done.set_exception(error)

    Thread(target=run, name="loading", daemon=True).start()
    return asyncio.wrap_future(done)


def _speaks_for_itself(error: BaseException | None) -> bool:
    """Whether work ended for a reason of its own, not for want of another rank."""
    return error is None or (isinstance(error, DraftwireError) and not isinstance(error, LostRankError))


def _share(n_ranks: int) -> int:
    """CPU threads of one rank, so that all of them together do not outnumber the cores."""
    return max(1, (os.cpu_count() or 1) // n_ranks)
