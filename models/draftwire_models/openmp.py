"""How OpenMP threads wait for work."""

from __future__ import annotations

import os

#: Threads look for work for about 50 us (1000 turns of GNU's loop) before they sleep. By default they spin
#: for milliseconds or for ever, and with one busy neighbour a drafted token that takes 30 ms then takes
#: seconds. Where they sleep at once, waking them at each of the hundreds of barriers in a token costs as much
#: as a second thread gains: 53 ms a drafted token against 33, two threads, quiet machine; 64 against 76
#: beside one or two busy processes; a target's pass over 16 sessions takes 300 ms against 230. "active" keeps
#: GNU's library from looking for less long when the process has more OpenMP threads than cores, as it has
#: when two of ours ever called llama.cpp; KMP_BLOCKTIME is LLVM's library, for which "active" alone would
#: mean for ever; there threads still sleep at once.
_WAIT_SHORTLY = {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "active"}


def wait_shortly() -> None:
    """Set the environment; call it before anything loads an OpenMP library.

    It replaces an ``OMP_WAIT_POLICY`` of the user's and is inherited by child processes; a
    ``GOMP_SPINCOUNT`` of theirs leaves all as it is.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.update(_WAIT_SHORTLY)
        os.environ.setdefault("KMP_BLOCKTIME", "0")
