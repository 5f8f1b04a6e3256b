"""The service of a benchmark, as a process of its own on a core of its own."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from draftwire_edge.service_process import cloud_command, started


def paced_cloud(a_ms: float, b_ms: float, core: int | None) -> AbstractContextManager[str]:
    """HOST:PORT of a paced target."""
    module = "draftwire_sim.bench.paced_target"
    pace = ["--a-ms", str(a_ms), "--b-ms", str(b_ms)]
    return started([sys.executable, "-m", module, "--port", "0", *pace], core)


def real_cloud(pair: str, core: int | None) -> AbstractContextManager[str]:
    """HOST:PORT of the real target; one thread where it has one core."""
    return started([*cloud_command(pair), *(["--threads", "1"] if core is not None else [])], core)
