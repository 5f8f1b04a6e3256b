"""A file being written: hashed, counted and shown while the bytes pass."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from draftwire_models.digests import DigestStore
from draftwire_models.errors import DiskFullError, DownloadError, HashMismatchError
from draftwire_models.progress import Progress
from draftwire_models.space import is_disk_full

CHUNK_BYTES = 1 << 20


class HashingSink:
    """Appends bytes to an open file and hashes them on the way."""

    def __init__(self, stream: BinaryIO, what: str, folder: Path, progress: Progress) -> None:
        """Write to `stream`; `what` and `folder` are for the message when the disk fills up."""
        self._stream = stream
        self._what = what
        self._folder = folder
        self._progress = progress
        self._hash = hashlib.sha256()
        self.size = 0

    def append(self, source: BinaryIO) -> None:
        """Copy everything that is left in `source`."""
        while chunk := source.read(CHUNK_BYTES):
            self._write(chunk)
            self._hash.update(chunk)
            self.size += len(chunk)
            self._progress.advance(len(chunk))

    def close(self) -> str:
        """Force the bytes to the disk and return their sha256.

        Without the fsync a crash after the rename could leave a complete name
        on an incomplete file.
        """
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise self._explained(error) from error
        return self._hash.hexdigest()

    def _write(self, chunk: bytes) -> None:
        try:
            self._stream.write(chunk)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> Exception:
        return DiskFullError(self._what, self._folder) if is_disk_full(error) else error


def check_identity(
    name: str, source: str, expected: tuple[int | None, str | None], got: tuple[int, str]
) -> None:
    """Raise unless size and sha256 are the expected ones; None expects nothing."""
    size, sha256 = expected
    if size is not None and got[0] != size:
        raise DownloadError(
            f"{name} from {source} has {got[0]:,} bytes, expected {size:,}."
            " Nothing was kept. Try again later, or fetch the file yourself and pass its path."
        )
    if sha256 is not None and got[1] != sha256:
        raise HashMismatchError(name, sha256, got[1], source)


def put_in_place(finished: Path, destination: Path, digest: str, digests: DigestStore) -> None:
    """Rename a checked file to its final name and note its digest."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    finished.replace(destination)
    digests.remember(destination, digest)
