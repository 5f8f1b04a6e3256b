"""What a benchmark needs of an installation, looked for before anything is measured."""

from __future__ import annotations

from importlib.util import find_spec

from draftwire_protocol.errors import DraftwireError

#: The paced target has the service's engine too.
_CLOUD = ("torch", "transformers", "gguf", "grpc_health")


def check_installed(*, plots: bool) -> None:
    """Say what is missing, and how to get it.

    Args:
        plots: whether the curves are to be drawn.

    Raises:
        DraftwireError: the cloud's half, or what draws, is not installed.
    """
    for name in _CLOUD:
        if find_spec(name) is None:
            reason = f"the cloud's half is not installed (No module named {name!r})"
            raise DraftwireError(f"{reason}. Run pip install '.[cloud]'")
    if plots and find_spec("matplotlib") is None:
        raise DraftwireError("--plot needs matplotlib, which is not installed. Run pip install '.[sim]'")
