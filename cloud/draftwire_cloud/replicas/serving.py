"""``draftwire-cloud serve --engine ray``: replicas, their keepers, and the front."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, TextIO

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import TargetConfig
from draftwire_cloud.replicas.actor import ReplicaSpec
from draftwire_cloud.replicas.cluster import ray_replicas
from draftwire_cloud.replicas.front import Front
from draftwire_cloud.replicas.keeper import Keeper
from draftwire_cloud.replicas.router import Router
from draftwire_cloud.server import Address, stop_signal


async def serve_replicas(
    config: TargetConfig,
    limits: EngineLimits,
    address: Address,
    count: int,
    say: Callable[[str], None],
) -> None:
    """Serve replicas of one target until SIGTERM or SIGINT.

    Args:
        config: of the target; without threads each replica gets its share of the cores.
        limits: of each replica.
        address: where the front listens.
        count: how many replicas.
        say: told what happens, a line at a time.

    Raises:
        DraftwireError: a replica cannot serve, or the port is taken.
    """
    config = replace(config, threads=config.threads or threads_each(os.cpu_count() or 1, count))
    token = secrets.token_hex(32)
    front = Front(address, Router(limits.lease_s), token)
    out = sys.stdout
    # What Ray repeats of its processes belongs beside the notes; standard output has one line.
    with redirect_stdout(sys.stderr), ray_replicas(ReplicaSpec(config, limits, token), count) as replicas:
        stopped = stop_signal()
        async with front:
            keepers = [Keeper(number, one, front, say) for number, one in enumerate(replicas)]
            serving = asyncio.create_task(
                _serve(keepers, lambda name: _print_ready(out, name, address.host, front.port))
            )
            either: set[asyncio.Future[Any]] = {serving, stopped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            say(f"{await stopped}: shutting down")
        serving.cancel()
        await asyncio.wait({serving})


def threads_each(cores: int, replicas: int) -> int:
    """CPU threads of each replica, at least one."""
    return max(1, cores // replicas)


async def _serve(keepers: list[Keeper], tell_ready: Callable[[str], None]) -> None:
    """Start all replicas, say so, and keep them."""
    started = await asyncio.gather(*(keeper.start() for keeper in keepers))
    tell_ready(started[0].name)
    await asyncio.gather(*(keeper.run() for keeper in keepers))


def _print_ready(out: TextIO, name: str, host: str, port: int) -> None:
    out.write(f"serving {name} on {host}:{port}\n")
    out.flush()
