"""How OpenMP threads wait for work."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: How long threads look for work before they sleep, in turns of GNU's loop; 1000 are about 50 us. By default
#: they spin for milliseconds or for ever, and with one busy neighbour a drafted token that takes 30 ms then
#: takes seconds. Where they sleep at once, waking them at each of the hundreds of barriers in a token costs
#: as much as a second thread gains: 53 ms a drafted token against 33, two threads, quiet machine; 64 against
#: 76 beside one or two busy processes.
SHARED_TURNS = 1000
#: For a service that has its machine to itself. A pass of a small target over 16 sessions: 103 ms against
#: 160, one session at a time 23 % less. Beside a busy process it costs: 370 ms against 180.
OWN_TURNS = 6000


def waiting(environment: Mapping[str, str], turns: int = SHARED_TURNS) -> dict[str, str]:
    """The environment for a process whose threads wait for work that long.

    "active" keeps GNU's library from looking for less long when the process has more OpenMP threads than
    cores, as it has when two of ours ever called llama.cpp; KMP_BLOCKTIME is LLVM's library, for which
    "active" alone would mean for ever; there threads still sleep at once.

    Args:
        environment: as it is. The user's ``OMP_WAIT_POLICY`` is replaced; a ``GOMP_SPINCOUNT`` of theirs
            leaves all as it is.
        turns: of GNU's loop.
    """
    if "GOMP_SPINCOUNT" in environment:
        return dict(environment)
    ours = {"GOMP_SPINCOUNT": str(turns), "OMP_WAIT_POLICY": "active"}
    return {"KMP_BLOCKTIME": "0"} | dict(environment) | ours


def wait_shortly(turns: int = SHARED_TURNS) -> None:
    """Set this process' environment, and so that of its children; call it before anything loads OpenMP.

    Args:
        turns: of GNU's loop.
    """
    os.environ.update(waiting(os.environ, turns))
