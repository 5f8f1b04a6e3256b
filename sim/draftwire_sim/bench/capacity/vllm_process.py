"""vLLM beside us: the same weights and prompts, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_protocol.errors import CloudUnavailableError, UserInputError

NOT_INSTALLED = "not installed"
_WORKER = Path(__file__).with_name("vllm_worker.py")


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What it is started with."""

    folder: Path
    dtype: str
    gamma: int
    #: Longest prompt and text together, in tokens.
    length: int


def interpreter(asked: str | None) -> str | None:
    """The Python that has vLLM, or None.

    Args:
        asked: of another environment: vLLM wants other versions than we do, so it is seldom in ours.

    Raises:
        UserInputError: the one asked for has none.
    """
    if asked is None:
        return sys.executable if importlib.util.find_spec("vllm") is not None else None
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([asked, "-c", look], check=False).returncode == 0  # noqa: S603  # the user's own
    except OSError:
        found = False
    if not found:
        raise UserInputError("--vllm-python", f"{asked} has no vLLM", "Name a Python that imports vllm")
    return asked


class VllmProcess:
    """A worker that is ready.

    Args:
        process: with pipes to its input and output; returns when it is ready.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = str(self._read()["version"])

    def write(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int]
    ) -> tuple[float, list[list[int]]]:
        """Write all texts at once: seconds, and the ids of each."""
        if self._process.stdin is None:
            raise CloudUnavailableError("the vLLM worker has no input")
        asked = {"prompts": [list(ids) for ids in prompts], "max_tokens": list(max_tokens)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer["seconds"], answer["outputs"]

    def _read(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            CloudUnavailableError: it ended.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise CloudUnavailableError(f"vLLM ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(python: str, options: VllmOptions) -> Iterator[VllmProcess]:
    """A worker, once it is ready."""
    arguments = [str(options.folder), options.dtype, str(options.gamma), str(options.length)]
    command = [python, str(_WORKER), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        yield VllmProcess(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        process.wait()
