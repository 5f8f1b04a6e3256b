"""llama.cpp as a library: imported late, quiet, initialised once.

Three things must happen in this order, so they happen in one place:

1. Short waiting of OpenMP's threads before the import (see ``draftwire_models.openmp``).
2. Our log callback right after it. The binding prints errors to stderr; here they are kept, so that an
   exception can quote the line that explains it.
3. ``llama_backend_init``, once per process.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import deque
from functools import cache
from typing import Any

from draftwire_models.openmp import wait_shortly
from draftwire_protocol.errors import DrafterError

_INSTALL = """llama-cpp-python, which runs the draft model, {problem}. Install it with one of:
  pip install 'llama-cpp-python>=0.3.36'                                           (CPU; Metal on a Mac)
  CMAKE_ARGS="-DGGML_METAL=on" pip install --no-cache-dir 'llama-cpp-python>=0.3.36'    (Apple silicon)
  CMAKE_ARGS="-DGGML_CUDA=on" pip install --no-cache-dir 'llama-cpp-python>=0.3.36'     (NVIDIA)
It is compiled on the spot: a C++ compiler and CMake must be there. On a Mac use an arm64 Python."""

#: ggml_log_level of the lines worth quoting, and of the pieces that continue the line before.
_LEVEL_ERROR, _LEVEL_CONTINUED = 4, 5


class LogKeeper:
    """Swallows llama.cpp's log and keeps its last error lines."""

    def __init__(self, size: int = 16) -> None:
        self._lines: deque[str] = deque(maxlen=size)
        self._level = 0

    def __call__(self, level: int, text: bytes | None, _user_data: object = None) -> None:
        """Take one piece of log; called from any thread."""
        if level != _LEVEL_CONTINUED:
            self._level = level
        line = (text or b"").decode("utf-8", "replace").strip()
        if self._level == _LEVEL_ERROR and line:
            self._lines.append(line)

    def clear(self) -> None:
        """Forget what was kept, so that the next quote belongs to the next call."""
        self._lines.clear()

    def last_error(self) -> str:
        """The most telling kept line: the first one, which later ones only wrap; "" when there is none."""
        return self._lines[0] if self._lines else ""


LOG = LogKeeper()
#: ctypes callbacks die with their Python object; llama.cpp holds ours until the process ends.
_kept_callbacks: list[object] = []


@cache
def llama_cpp() -> Any:
    """The ``llama_cpp`` module, ready for use.

    Raises:
        DrafterError: it is not installed, or its library does not load; with the install lines.
    """
    wait_shortly()
    try:
        module = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise DrafterError(_INSTALL.format(problem="is not installed")) from error
    except (OSError, RuntimeError) as error:
        raise DrafterError(_INSTALL.format(problem=f"is installed but does not load ({error})")) from error
    callback = module.llama_log_callback(LOG)
    _kept_callbacks.append(callback)
    module.llama_log_set(callback, ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


def with_reason(message: str) -> str:
    """``message`` and, when llama.cpp logged an error since ``LOG.clear()``, that line."""
    reason = LOG.last_error()
    return f"{message}: {reason}" if reason else message


def default_threads() -> int:
    """Threads for decoding when the user named none: the cores this process may use, at most 8.

    Decoding one token reads the whole model, so memory, not arithmetic, is the limit, and the second
    thread of a core only adds waiting: of more than four logical cores half are used.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        cores = os.cpu_count() or 1
    return cores if cores <= 4 else min(8, cores // 2)
