"""constraints.txt pins what was tested, for any machine."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*")  # no local part, no URL, no path, no marker

#: What a CUDA build of torch brings along; which of these depends on the build, and torch itself bounds them.
ACCELERATOR = re.compile(r"nvidia-|cuda-|triton")


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """What pyproject.toml asks for itself, over all extras."""
    lines = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    return [found for found in map(Requirement, lines) if found.name != project["name"]]


def test_every_line_is_a_plain_pin(repository: Any) -> None:
    lines = (repository.root / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not PIN.fullmatch(line)] == []
    assert pins == sorted(pins, key=lambda line: line.split("==")[0])
    assert len(pins) == len(repository.pins())


def test_the_pins_meet_what_the_project_asks_for(repository: Any) -> None:
    pins = repository.pins()
    for wanted in requirements(repository.project):
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), str(wanted)


def test_nothing_that_a_pinned_package_needs_is_left_open(repository: Any) -> None:
    pins = repository.pins()
    for name, version in pins.items():
        found = distribution(name)
        if Version(found.version).public != version:
            continue  # another version is installed here; its needs may differ
        needed = [Requirement(line) for line in found.requires or []]
        here = {
            canonicalize_name(one.name)
            for one in needed
            if one.marker is None or one.marker.evaluate({"extra": ""})
            if not ACCELERATOR.match(one.name)
        }
        assert here <= pins.keys(), f"{name} needs {here - pins.keys()}"


def test_the_stub_generator_is_not_among_them(repository: Any) -> None:
    lines = (repository.root / "tools/stub-generator.txt").read_text().splitlines()
    generator = {line.split("==")[0] for line in lines if line and not line.startswith("#")}
    assert generator
    assert not generator & repository.pins().keys()
