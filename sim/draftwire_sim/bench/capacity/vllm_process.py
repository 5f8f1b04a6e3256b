"""vLLM beside us: the same weights and prompts, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_protocol.errors import CloudUnavailableError, UserInputError

NOT_INSTALLED = "not installed"
_WORKER = Path(__file__).with_name("vllm_worker.py")
#: How long it may take to end when nothing more is asked, in seconds.
_GOODBYE_S = 20.0
#: Ours, for two OpenMP programs on one machine; vLLM chooses its own.
_NOT_INHERITED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What it is started with."""

    folder: Path
    #: ``bfloat16`` or ``float32``.
    dtype: str
    gamma: int
    #: Longest prompt and text together, in tokens.
    length: int
    #: CPU threads; None leaves one core to its scheduler, as vLLM does by itself.
    threads: int | None = None

    @property
    def arguments(self) -> list[str]:
        """Those of the worker."""
        numbers = (self.gamma, self.length, self.threads or 0)
        return [str(self.folder), self.dtype, *map(str, numbers)]


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
    """A worker that is ready; it stands still while nothing is asked of it.

    Args:
        process: with pipes to its input and output, leader of a group of its own.

    Raises:
        CloudUnavailableError: it ended before it was ready.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = str(self._read()["version"])
        _tell(self._process, signal.SIGSTOP)

    def write(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int]
    ) -> tuple[float, list[list[int]]]:
        """Write all texts at once.

        Args:
            prompts: ids.
            max_tokens: of each text; exactly so many are written.

        Returns:
            Seconds, and the ids of each.

        Raises:
            CloudUnavailableError: it ended.
        """
        if self._process.stdin is None:
            raise CloudUnavailableError("the vLLM worker has no input")
        asked = {"prompts": [list(ids) for ids in prompts], "max_tokens": list(max_tokens)}
        _tell(self._process, signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise CloudUnavailableError(f"vLLM ended with exit code {self._process.wait()}") from error
        answer = self._read()
        # Its processes poll while they wait, and would take time from those measured next.
        _tell(self._process, signal.SIGSTOP)
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
    """A worker, once it is ready.

    Args:
        python: an interpreter that has vLLM.
        options: of the worker.

    Raises:
        CloudUnavailableError: it ended before it was ready.
    """
    process = subprocess.Popen(  # noqa: S603  # our own script
        [python, str(_WORKER), *options.arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
        start_new_session=True,
    )
    try:
        yield VllmProcess(process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, so that its own processes end too; else end them all."""
    _tell(process, signal.SIGCONT)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GOODBYE_S)
    _tell(process, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _tell(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the worker and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
