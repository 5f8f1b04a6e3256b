"""What the packaging tests share: the repository's files and its commands, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCE_ROOTS = ("edge", "cloud", "protos", "models", "sim")


@dataclass(frozen=True)
class Repository:
    """The checked-out tree."""

    root: Path

    @property
    def project(self) -> dict[str, Any]:
        """The [project] table of pyproject.toml."""
        return dict(tomllib.loads((self.root / "pyproject.toml").read_text())["project"])

    @property
    def packages(self) -> list[Path]:
        """The folders that a wheel is made of."""
        return [package for source in SOURCE_ROOTS for package in (self.root / source).glob("draftwire_*")]

    def pins(self) -> dict[str, str]:
        """constraints.txt: name -> version."""
        lines = (self.root / "constraints.txt").read_text().splitlines()
        return dict(line.split("==") for line in lines if line and not line.startswith("#"))

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the source roots importable and collect what it says."""
        return subprocess.run(
            command, cwd=cwd or self.root, env=self.environment(env), text=True, capture_output=True,
            check=False, timeout=timeout_s,
        )  # fmt: skip

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Wide plain output, and our sources whether or not they are installed."""
        path = os.pathsep.join(str(self.root / source) for source in SOURCE_ROOTS)
        return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"} | dict(
            more or {}
        )

    def script(self, name: str) -> list[str]:
        """The command that a script of pyproject.toml stands for."""
        module, function = self.project["scripts"][name].split(":")
        code = f"import sys; from {module} import {function}; sys.argv[0] = {name!r}; {function}()"
        return [sys.executable, "-c", code]

    def tool(self, name: str) -> Path:
        """A development tool of the environment that runs the tests."""
        return Path(sys.executable).with_name(name)


@pytest.fixture(scope="session")
def repository() -> Repository:
    return Repository(Path(__file__).resolve().parents[2])
