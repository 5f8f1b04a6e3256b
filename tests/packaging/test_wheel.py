"""The wheel holds all that the sources hold, and works where only the wheel is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

PACKAGES = {"draftwire_edge", "draftwire_cloud", "draftwire_protocol", "draftwire_models", "draftwire_sim"}


@dataclass(frozen=True)
class Installed:
    """A folder that holds nothing but the unpacked wheel and its scripts."""

    folder: Path
    elsewhere: Path

    def run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run far from the sources; our code can come from the folder only."""
        env = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "COLUMNS": "200",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        env["DRAFTWIRE_CACHE_DIR"] = str(self.elsewhere / "cache")
        return subprocess.run(
            command, cwd=self.elsewhere, env=env, text=True, capture_output=True, check=False, timeout=120
        )

    def script(self, name: str) -> Path:
        return self.folder / "bin" / name


@pytest.fixture(scope="session")
def wheel(repository: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        out,
    ]
    done = repository.run(command)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(repository: Any, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", folder, wheel]
    done = repository.run(command)
    assert done.returncode == 0, done.stderr
    return Installed(folder, tmp_path_factory.mktemp("elsewhere"))


def test_it_holds_every_file_of_the_packages_and_nothing_else(repository: Any, wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(package.parent).as_posix()
        for package in repository.packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources
    assert {name.split("/")[0] for name in packed} == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_each_package_is_typed(wheel: Path, package: str) -> None:
    assert f"{package}/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("name", ["speculation_pb2.py", "speculation_pb2.pyi", "speculation_pb2_grpc.py"])
def test_the_stubs_are_inside(wheel: Path, name: str) -> None:
    assert f"draftwire_protocol/_pb/{name}" in zipfile.ZipFile(wheel).namelist()


def test_the_metadata_name_the_extras_the_licence_and_the_python(repository: Any, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        files = archive.namelist()
    assert metadata["Version"] == repository.project["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)
    assert set(metadata.get_all("Provides-Extra", [])) == set(repository.project["optional-dependencies"])
    assert metadata["Requires-Python"] == repository.project["requires-python"]


def test_all_packages_are_imported_from_it(installed: Installed) -> None:
    code = "import importlib, json, sys; "
    code += "print(json.dumps([importlib.import_module(name).__file__ for name in sys.argv[1:]]))"
    done = installed.run([sys.executable, "-c", code, *sorted(PACKAGES)])
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_relative_to(installed.folder) for file in json.loads(done.stdout))


def test_every_script_of_the_project_is_installed_and_explains_itself(
    repository: Any, installed: Installed
) -> None:
    for name in repository.project["scripts"]:
        done = installed.run([installed.script(name), "--help"])
        assert done.returncode == 0, done.stderr
        assert f"Usage: {name}" in done.stdout


def test_models_are_listed_from_it(installed: Installed) -> None:
    done = installed.run([installed.script("draftwire"), "models", "list"])
    assert done.returncode == 0, done.stderr
    assert "qwen2.5-coder (default)" in done.stdout
    assert not (installed.elsewhere / "cache").exists()
