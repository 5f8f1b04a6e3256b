"""A service of our own, started as another process and ended with us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from draftwire_models.openmp import SHARED_TURNS, waiting
from draftwire_protocol.errors import CloudUnavailableError

#: First words of the line in which the service says where it listens.
READY = "serving "


def cloud_command(pair: str) -> list[str]:
    """What starts the service on a free port."""
    return [str(Path(sys.executable).with_name("draftwire-cloud")), "serve", "--model", pair, "--port", "0"]


@contextmanager
def started(command: Sequence[str], core: int | None = None, turns: int = SHARED_TURNS) -> Iterator[str]:
    """HOST:PORT of a new service, once it is ready.

    Args:
        command: prints ``READY`` and where it listens.
        core: the CPU it may use; None for any. Other systems than Linux have no such call.
        turns: how long its threads look for work, see `waiting`.

    Raises:
        CloudUnavailableError: it ended before it was ready.
    """
    process = subprocess.Popen(  # noqa: S603  # our own commands
        command, stdout=subprocess.PIPE, text=True, env=waiting(os.environ, turns)
    )
    try:
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {core})  # before it starts a thread
        yield _address_of(process)
    finally:
        process.terminate()
        process.wait()


def _address_of(process: subprocess.Popen[str]) -> str:
    """Wait until the service says where it listens."""
    for line in process.stdout or ():
        if line.startswith(READY):
            return line.rsplit(" ", 1)[1].strip()
    raise CloudUnavailableError(f"draftwire-cloud ended with exit code {process.wait()} before it was ready")
