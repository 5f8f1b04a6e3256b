"""Work in another thread that must be over before what it uses is closed."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def completed(work: asyncio.Future[T]) -> T:
    """Wait for work in a thread to its end; a cancellation, even a second one, counts only then.

    A thread cannot be cancelled, and whoever is cancelled next frees what the thread still reads.

    Args:
        work: from ``run_in_executor``; a task would itself be cancelled when the event loop is left.

    Raises:
        CancelledError: the caller was cancelled meanwhile; what the work gave or raised is dropped.
    """
    cancellation: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # looked at, or asyncio would complain that nobody did
    raise cancellation
