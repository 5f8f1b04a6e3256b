"""Runs the installed commands as a user does: as processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {**os.environ, "DRAFTWIRE_CONFIG": os.devnull, "NO_COLOR": "1", "COLUMNS": "200"}


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as JSON."""
        return json.loads(self.out)


def command(name: str) -> str:
    """The installed script, or what it calls where the tree is used without installing."""
    return str(Path(sys.executable).with_name(name))


async def start(name: str, *arguments: str, **variables: str) -> asyncio.subprocess.Process:
    """Start a command."""
    return await asyncio.create_subprocess_exec(
        command(name),
        *arguments,
        env=ENVIRONMENT | variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(name: str, *arguments: str, **variables: str) -> Finished:
    """Run a command to its end."""
    process = await start(name, *arguments, **variables)
    out, err = await process.communicate()
    return Finished(process.returncode or 0, out.decode(), err.decode())


@dataclass
class Service:
    """A running ``draftwire-cloud``."""

    process: asyncio.subprocess.Process
    address: str

    async def kill(self) -> None:
        """As when the machine loses power."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """As an operator stops it; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        await self.process.communicate()
        return self.process.returncode or 0


async def start_service(folder: Path, port: int = 0) -> Service:
    """Start a service for a model folder and wait until it says that it serves."""
    process = await start(
        "draftwire-cloud", "serve", "--model", str(folder), "--port", str(port),
        "--dtype", "float32", "--threads", "1",
    )  # fmt: skip
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    if not line.startswith("serving "):
        _, err = await process.communicate()
        raise AssertionError(err.decode())
    return Service(process, line.split()[-1])


@asynccontextmanager
async def service(folder: Path, port: int = 0) -> AsyncIterator[Service]:
    """A service that is gone afterwards, whatever happens."""
    running = await start_service(folder, port)
    try:
        yield running
    finally:
        if running.process.returncode is None:
            await running.kill()
