"""Files stay short and belong to no machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

LONGEST = 450
GENERATED = ("protos/draftwire_protocol/_pb/",)
DATA = {".json", ".jsonl", ".csv", ".svg", ".txt"}

#: What a file that works on every machine never says.
FORBIDDEN = {
    "somebody's home": re.compile(r"(?<![\w.}])/(home|root|Users)/"),
    "a folder of one machine": re.compile(r"(?<![\w.}*/-])/(opt|work|workspace|mnt|media)/\w"),
    "a Windows drive": re.compile(r"\b[A-Z]:\\\w"),
    "where packages come from": re.compile(
        r"(index[-_]url|find[-_]links|trusted[-_]host)[\"']?[ =,:]+[\"']?([a-z+]+:/|/|[\w-]+\.\w)",
        re.IGNORECASE,
    ),
    "a package registry": re.compile(
        r"\b(pypi|pythonhosted|npmjs|crates|rubygems|docker)\.(org|io|com|dev)\b"
    ),
    "a package from a path or an address": re.compile(r"@ (file|https?|git\+\w+):"),
    "a secret": re.compile(
        r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})\b|BEGIN [A-Z ]*PRIVATE KEY"
    ),
}


@pytest.fixture(scope="session")
def texts(repository: Any) -> dict[str, str]:
    """Every text file that is, or would be, committed."""
    listed = repository.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    )
    assert listed.returncode == 0, listed.stderr
    paths = [repository.root / name for name in listed.stdout.split("\0") if name]
    found = {path.relative_to(repository.root).as_posix(): read(path) for path in paths if path.is_file()}
    return {name: text for name, text in found.items() if text is not None}


def read(path: Path) -> str | None:
    """The text of a file; None for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def findings(text: str) -> list[str]:
    """What is wrong with a text, with the line."""
    return [
        f"line {number}: {what}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_the_files_are_found(texts: dict[str, str]) -> None:
    assert {
        "pyproject.toml",
        "edge/draftwire_edge/cli.py",
        "docker/edge.Dockerfile",
        ".ci/run",
    } <= texts.keys()


def test_no_file_is_long(texts: dict[str, str]) -> None:
    written = {name: text for name, text in texts.items() if not name.startswith(GENERATED)}
    counts = {name: text.count("\n") for name, text in written.items() if Path(name).suffix not in DATA}
    assert {name: count for name, count in counts.items() if count > LONGEST} == {}


def test_no_file_belongs_to_a_machine(texts: dict[str, str]) -> None:
    assert {name: found for name, text in texts.items() if (found := findings(text))} == {}


def test_every_file_ends_with_one_newline_and_has_no_tabs_in_code(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), name
        assert "\t" not in text or not name.endswith((".py", ".toml", ".yml", ".yaml", ".proto")), name


@pytest.mark.parametrize(
    "parts",
    [
        ("/", "home/me/models"),
        ("cd /", "root/x"),
        ("/", "Users/me"),
        ("venv: /", "opt/tools/bin"),
        ('"/', 'work/main"'),
        ("C", ":\\models"),
        ("--extra-index", "-url https://mirror/simple"),
        ("PIP_INDEX", "_URL=https://mirror/simple"),
        ('"--find', '-links", "/wheels"'),
        ("trusted", "-host = mirror.example.org"),
        ("pypi", ".org"),
        ("torch @", " file:///x.whl"),
        ("hf", "_" + "a" * 34),
    ],
)
def test_what_is_looked_for_would_be_seen(parts: tuple[str, str]) -> None:
    assert findings("".join(parts)) != []


@pytest.mark.parametrize(
    "text",
    [
        "#!/usr/bin/env bash",
        "/var/cache/draftwire",
        "docs/home-page/plan.md",
        "https://www.apache.org/",
        '"--find-links", str(folder)',
    ],
)
def test_what_is_harmless_is_left_alone(text: str) -> None:
    assert findings(text) == []
