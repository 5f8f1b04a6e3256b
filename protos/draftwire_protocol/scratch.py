"""Buffers that are used again, one set a thread.

An array over a whole vocabulary is large enough that the allocator asks the system for fresh pages each
time, and touching those costs several times the arithmetic on them.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_local = threading.local()


def scratch(purpose: str, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array ``[count]``; its contents last until the next call for the same purpose.

    Args:
        purpose: callers that hold a buffer at the same time need different ones.
        count: number of elements.
        dtype: of the elements.
    """
    buffers: dict[str, npt.NDArray[Any]] = _local.__dict__
    found = buffers.get(purpose)
    if found is None or len(found) < count or found.dtype != np.dtype(dtype):
        found = buffers[purpose] = np.empty(count, dtype)
    return found[:count]
