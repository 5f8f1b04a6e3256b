"""Who computes: the service's own thread does so by itself, the others with all threads."""

import subprocess
import sys

SCRIPT = """
import asyncio, os, sys, time
from concurrent.futures import ThreadPoolExecutor
import torch
from draftwire_cloud.engine.threads import compute_by_oneself, in_passing

def threads_of_ours():
    # Threads of OpenMP and of Python alike; operations that torch divides begin a team.
    return len(os.listdir("/proc/self/task"))

def work():
    return torch.ones(1 << 20).sum().item(), threads_of_ours()

async def main():
    torch.set_num_threads(3)
    compute_by_oneself()
    before = threads_of_ours()
    torch.ones(1 << 20).sum()
    assert threads_of_ours() == before, "the thread that answers has a team"
    found, during = await in_passing(work)
    # The thread itself and its team's two others.
    assert (found, during) == (2.0 ** 20, before + 3), (found, before, during)
    until = time.monotonic() + 10  # they end by themselves, a little later
    while threads_of_ours() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads_of_ours() == before, "a team outlives its thread"
    with ThreadPoolExecutor(1) as passes:
        assert passes.submit(work).result()[1] == before + 3

if sys.platform == "linux":
    asyncio.run(main())
"""


def test_only_the_thread_of_the_passes_has_a_team() -> None:
    """In a process of its own: here torch has computed before."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
