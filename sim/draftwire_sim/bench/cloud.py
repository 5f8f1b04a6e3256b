"""The service of a benchmark, as a process of its own on a core of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from draftwire_edge.demo import address_of


@contextmanager
def paced_cloud(a_ms: float, b_ms: float, core: int | None) -> Iterator[str]:
    """HOST:PORT of a paced target."""
    module = "draftwire_sim.bench.paced_target"
    command = [sys.executable, "-m", module, "--port", "0", "--a-ms", str(a_ms), "--b-ms", str(b_ms)]
    with _running(command, core) as address:
        yield address


@contextmanager
def real_cloud(pair: str, core: int | None) -> Iterator[str]:
    """HOST:PORT of the real target; one thread where it has one core."""
    command = [
        str(Path(sys.executable).with_name("draftwire-cloud")),
        "serve",
        "--model",
        pair,
        "--port",
        "0",
    ]
    if core is not None:
        command += ["--threads", "1"]
    with _running(command, core) as address:
        yield address


@contextmanager
def _running(command: Sequence[str], core: int | None) -> Iterator[str]:
    """Start a service, wait until it is ready, end it."""
    process = subprocess.Popen(  # noqa: S603  # our own commands
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_WAIT_POLICY": "passive"}
    )
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})  # before it starts any thread
    try:
        yield address_of(process)
    finally:
        process.terminate()
        process.wait()
