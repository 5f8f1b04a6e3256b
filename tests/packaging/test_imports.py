"""Who may import whom, and what a command may load before it knows what to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = {"torch", "transformers", "llama_cpp", "accelerate", "gguf", "jinja2", "llguidance"}
LINKS = {"grpc", "socket", "asyncio"}

#: Imports modules and all their submodules but generated ones; prints what is loaded then.
LOAD = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        if "._pb" not in found.name:
            importlib.import_module(found.name)
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(repository: Any, *modules: str) -> set[str]:
    """Everything in memory after these imports, in a process of its own."""
    done = repository.run([sys.executable, "-c", LOAD, *modules])
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_protocol_needs_no_model_library_and_no_network(repository: Any) -> None:
    loaded = loaded_by(repository, "draftwire_protocol")
    assert "draftwire_protocol.codec" in loaded
    assert loaded & (HEAVY | LINKS) == set()


@pytest.mark.parametrize("module", ["draftwire_edge.controller", "draftwire_cloud.scheduler"])
def test_the_pure_core_needs_no_model_library_and_no_network(repository: Any, module: str) -> None:
    assert loaded_by(repository, module) & (HEAVY | LINKS) == set()


@pytest.mark.parametrize("module", ["draftwire_edge.cli", "draftwire_cloud.cli", "draftwire_models.cli"])
def test_a_command_loads_no_model_library_until_it_needs_one(repository: Any, module: str) -> None:
    assert loaded_by(repository, module) & (HEAVY | {"grpc"}) == set()


def test_what_is_looked_for_would_be_seen(repository: Any) -> None:
    assert {"jinja2", "grpc", "socket", "asyncio"} <= loaded_by(repository, "jinja2", "grpc")


def test_the_import_contracts_hold(repository: Any) -> None:
    done = repository.run([repository.tool("lint-imports"), "--no-logo", "--no-cache"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("edge/draftwire_edge/cli.py", "draftwire_cloud", "edge and cloud never import each other"),
        ("cloud/draftwire_cloud/cli.py", "draftwire_edge", "edge and cloud never import each other"),
        ("protos/draftwire_protocol/errors.py", "draftwire_edge", "protocol and models are leaves"),
        ("protos/draftwire_protocol/errors.py", "torch", "the protocol needs numpy only"),
        ("edge/draftwire_edge/controller/__init__.py", "time", "the controller and the scheduler are pure"),
    ],
)
def test_a_breach_is_named(
    repository: Any, tmp_path: Path, importer: str, imported: str, contract: str
) -> None:
    for package in repository.packages:
        shutil.copytree(package, tmp_path / package.relative_to(repository.root))
    shutil.copy(repository.root / "pyproject.toml", tmp_path)
    with (tmp_path / importer).open("a") as module:
        module.write(f"\nimport {imported}\n")
    path = os.pathsep.join(str(tmp_path / package.parent.name) for package in repository.packages)
    command = [repository.tool("lint-imports"), "--no-logo", "--no-cache"]
    done = repository.run(command, cwd=tmp_path, env={"PYTHONPATH": path})
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout
