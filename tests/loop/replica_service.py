"""``draftwire-cloud serve --engine ray`` as an operator runs it, and what its processes are."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loop.process import ENVIRONMENT, command

#: How long anything may take before the test says that it does not happen, in seconds.
PATIENCE_S = 120.0


@dataclass
class ReplicaService:
    """A running front with its replicas."""

    process: subprocess.Popen[str]
    notes: Path
    address: str = ""

    def pids(self, replica: int) -> list[int]:
        """Processes that a replica has been, the present one last."""
        found = re.findall(rf"replica {replica}: ready at \S+ \(process (\d+)\)", self.notes.read_text())
        return [int(pid) for pid in found]

    def wait_ready(self, replica: int, times: int) -> int:
        """Wait until a replica has been ready so many times; returns its process."""
        until(lambda: len(self.pids(replica)) >= times)
        return self.pids(replica)[-1]

    def family(self) -> dict[int, str]:
        """The front's process and everything it started: process -> command line."""
        found = {self.process.pid: "front"}
        while True:
            more = {pid: line for pid, parent, line in _processes() if parent in found and pid not in found}
            if not more:
                return found
            found |= more

    def stop(self) -> int:
        """As an operator stops it; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def until(done: object) -> None:
    """Wait for something."""
    assert callable(done)
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and more than its parent's memory of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _processes() -> Iterator[tuple[int, int, str]]:
    """Every process: its number, its parent's, its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_text().replace("\0", " ")


def listening(pid: int) -> list[str]:
    """Addresses a process listens on, in the kernel's hexadecimal notation."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


@contextmanager
def replica_service(folder: Path, notes: Path, replicas: int) -> Iterator[ReplicaService]:
    """A running service that is gone afterwards, whatever happens."""
    arguments = [
        "serve", "--engine", "ray", "--replicas", str(replicas), "--model", str(folder), "--port", "0",
        "--dtype", "float32", "--threads", "1",
    ]  # fmt: skip
    with notes.open("w") as errors:
        process = subprocess.Popen(
            [command("draftwire-cloud"), *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    service = ReplicaService(process, notes)
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving "), notes.read_text()
            service.address = line.split()[-1]
            yield service
        finally:
            if process.poll() is None:
                process.terminate()  # after a kill, some of Ray's helpers would stay for a minute
