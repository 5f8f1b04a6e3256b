"""The committed protobuf stubs are what the proto gives, and the check would notice if not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

STUBS = "protos/draftwire_protocol/_pb"


@pytest.fixture
def copy(repository: Any, tmp_path: Path) -> Path:
    """The proto, its stubs and the tool, to be edited."""
    shutil.copytree(repository.root / "protos", tmp_path / "protos")
    shutil.copytree(repository.root / "tools", tmp_path / "tools")
    return tmp_path


def check(repository: Any, root: Path) -> tuple[int, list[str]]:
    """Exit code of the check and the names that it calls stale."""
    done = repository.run([sys.executable, root / "tools/gen_stubs.py", "--check"])
    return done.returncode, [
        line.split()[2] for line in done.stderr.splitlines() if line.startswith("stale stub: ")
    ]


def test_the_committed_stubs_are_fresh(repository: Any) -> None:
    assert check(repository, repository.root) == (0, [])


@pytest.mark.parametrize("name", ["speculation_pb2.py", "speculation_pb2.pyi", "speculation_pb2_grpc.pyi"])
def test_an_edited_stub_is_named(repository: Any, copy: Path, name: str) -> None:
    with (copy / STUBS / name).open("a") as stub:
        stub.write("# edited by hand\n")
    assert check(repository, copy) == (1, [name])


def test_a_missing_stub_is_named(repository: Any, copy: Path) -> None:
    (copy / STUBS / "speculation_pb2_grpc.py").unlink()
    assert check(repository, copy) == (1, ["speculation_pb2_grpc.py"])


def test_a_stub_without_a_proto_is_named(repository: Any, copy: Path) -> None:
    (copy / STUBS / "forgotten_pb2.py").write_text("")
    assert check(repository, copy) == (1, ["forgotten_pb2.py"])


def test_a_changed_proto_makes_its_stubs_stale(repository: Any, copy: Path) -> None:
    with (copy / "protos/draftwire/v1/speculation.proto").open("a") as proto:
        proto.write("\nmessage AddedLater {\n  uint32 number = 1;\n}\n")
    code, names = check(repository, copy)
    assert code == 1
    assert {"speculation_pb2.py", "speculation_pb2.pyi"} <= set(names)


def test_generating_again_makes_them_fresh(repository: Any, copy: Path) -> None:
    (copy / STUBS / "speculation_pb2.py").write_text("")
    assert repository.run([sys.executable, copy / "tools/gen_stubs.py"]).returncode == 0
    assert check(repository, copy) == (0, [])
