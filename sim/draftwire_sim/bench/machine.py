"""What a report says of the machine and the versions it was made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

_VERSIONS = ("draftwire", "grpcio", "llama-cpp-python", "numpy", "torch", "transformers")


def made_with() -> dict[str, Any]:
    """The ``machine`` and ``versions`` objects of a report."""
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in _VERSIONS},
    }


def processor() -> str:
    """The processor's name as the system gives it; perhaps empty."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
