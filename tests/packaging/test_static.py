"""The tree is formatted, clean and typed. Tools keep caches, so a second run is quick."""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.mark.parametrize(
    "command",
    [("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",)],
    ids=" ".join,
)
def test_the_tree_is_clean(repository: Any, command: tuple[str, ...]) -> None:
    done = repository.run([sys.executable, "-m", *command])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_are_valid_and_call_what_the_environment_has(repository: Any) -> None:
    done = repository.run([repository.tool("pre-commit"), "validate-config"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (repository.root / ".pre-commit-config.yaml").read_text().splitlines()
    programs = {line.split()[1] for line in lines if line.strip().startswith("entry:")}
    assert programs
    for program in programs:
        assert program.startswith(".venv/bin/")
        assert repository.tool(program.removeprefix(".venv/bin/")).exists()
