"""Which of our threads computes.

OpenMP keeps a team for every thread that ever computed. With more threads in teams than there are cores none
of them may look for work for long before it sleeps, whatever ``GOMP_SPINCOUNT`` says, and waking them costs a
third of a small target's pass. So the model is loaded on a thread that ends, its team with it; the thread
that answers the network computes by itself; and one thread makes the forward passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
#: Enough numbers for torch to divide them among threads.
_MANY = 1 << 17


def compute_by_oneself() -> None:
    """Let this thread's operations run on one core, those of threads that have not computed yet as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.zeros(_MANY).add_(1.0)  # a thread keeps the number that its first operation finds
    with ThreadPoolExecutor(1) as other:
        other.submit(torch.set_num_threads, threads).result()


async def in_passing(work: Callable[[], T]) -> T:
    """The result of ``work``, done on a thread that ends."""
    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
