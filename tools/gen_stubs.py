"""Generates the committed protobuf stubs, or checks that they are up to date.

    python tools/gen_stubs.py            # write protos/draftwire_protocol/_pb
    python tools/gen_stubs.py --check    # exit 1 and name the stale files

The generator is pinned old on purpose: stubs demand a runtime at least as new as their generator.
It is installed without its dependencies (tools/stub-generator.txt), since it needs none to run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = "draftwire/v1/speculation.proto"
PACKAGE = Path("draftwire_protocol/_pb")


def generate(out: Path) -> None:
    """Run protoc so that the stubs land in ``out / PACKAGE`` with right absolute imports."""
    source = ROOT / "protos"
    virtual = f"{PACKAGE}={source / 'draftwire/v1'}"
    command = [
        sys.executable, "-m", "grpc_tools.protoc", f"-I{virtual}",
        f"--python_out={out}", f"--grpc_python_out={out}", f"--mypy_out={out}", f"--mypy_grpc_out={out}",
        f"--plugin=protoc-gen-mypy={Path(sys.executable).with_name('protoc-gen-mypy')}",
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).with_name('protoc-gen-mypy_grpc')}",
        str(PACKAGE / Path(PROTO).name),
    ]  # fmt: skip
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


def stale_files() -> list[str]:
    """Names of committed stubs that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name: path.read_bytes() for path in (Path(folder) / PACKAGE).iterdir()}
    committed_folder = ROOT / "protos" / PACKAGE
    committed = {path.name: path.read_bytes() for path in committed_folder.glob("*_pb2*")}
    names = sorted(fresh.keys() | committed.keys())
    return [name for name in names if fresh.get(name) != committed.get(name)]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    if not parser.parse_args(argv).check:
        generate(ROOT / "protos")
        return 0
    stale = stale_files()
    for name in stale:
        sys.stderr.write(f"stale stub: {name} (run: python tools/gen_stubs.py)\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
