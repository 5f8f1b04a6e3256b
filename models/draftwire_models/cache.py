"""The cache folder on disk and the rule for what counts as present.

    ROOT/
      files/NAME.gguf         complete files, nothing else
      hub/OWNER--REPO/        complete safetensors folders from the hub
      converted/…/            safetensors made from a GGUF (see draftwire_cloud.convert)
      digests/                remembered sha256 sums
      partial/                work in progress; empty when nobody is at work
      locks/                  one lock file for each name

Something under ``files``, ``hub`` or ``converted`` got there by one rename, so
it is complete or absent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

from draftwire_models.digests import DigestStore
from draftwire_models.errors import CacheFolderError, DiskFullError
from draftwire_models.pairs import HubFolder, ModelFile
from draftwire_models.progress import Progress
from draftwire_models.space import is_disk_full

CACHE_DIR_VARIABLE = "DRAFTWIRE_CACHE_DIR"


def default_cache_dir() -> Path:
    """Return the folder named by DRAFTWIRE_CACHE_DIR, else the platform's cache folder."""
    named = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("draftwire"))


@dataclass(frozen=True)
class ModelCache:
    """One cache folder."""

    root: Path

    @classmethod
    def open(cls, cache_dir: Path | None = None) -> ModelCache:
        """Return the cache at `cache_dir`, or the default one. Writes nothing."""
        return cls((cache_dir or default_cache_dir()).expanduser().absolute())

    @property
    def digests(self) -> DigestStore:
        """The remembered digests of this cache."""
        return DigestStore(self.root / "digests")

    @property
    def converted(self) -> Path:
        """The folder of converted models."""
        return self.root / "converted"

    def path_of(self, model: ModelFile | HubFolder) -> Path:
        """Return where a model lies, or will lie."""
        kind = "files" if isinstance(model, ModelFile) else "hub"
        return self.root / kind / model.name

    def has_folder(self, folder: HubFolder) -> bool:
        """Tell whether a hub folder is complete; it was renamed into place, so being there is enough."""
        return (self.path_of(folder) / "config.json").is_file()

    def has_file(self, file: ModelFile) -> bool:
        """Tell whether a file is present, whole and the published one."""
        path = self.path_of(file)
        if not path.is_file():
            return False
        if file.size is not None and path.stat().st_size != file.size:
            return False
        # With no published digest the note made at download time still shows later changes.
        if file.sha256 is None:
            return self.digests.recall(path) is not None
        return self.digests.digest(path) == file.sha256

    def has(self, model: ModelFile | HubFolder) -> bool:
        """Tell whether a model is ready to use."""
        return self.has_file(model) if isinstance(model, ModelFile) else self.has_folder(model)

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Let one process at a time work on `name`; say so when it is not us."""
        with self.writable():
            folder = self.root / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress.note(f"another process is working on {name}; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """Yield an empty folder for work on `name` and remove it whatever happens.

        Call it while holding the lock of `name`: what an earlier process that
        was killed outright left behind is then nobody's, and is removed first.
        """
        partial = self.root / "partial"
        prefix = f"{name}~"
        with self.writable():
            partial.mkdir(parents=True, exist_ok=True)
            for stale in partial.glob(f"{_escaped(prefix)}*"):
                shutil.rmtree(stale, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=partial))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Turn a cache folder that cannot be written into an error that says what to do."""
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise DiskFullError("the cache", self.root) from error
            raise CacheFolderError(self.root, error.strerror or str(error)) from error


def _escaped(text: str) -> str:
    """Quote the characters that mean something to glob."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)
