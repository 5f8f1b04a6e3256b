"""Remembered sha256 digests, so that a gigabyte is not hashed at each start.

Notes are kept in a folder of their own, one small JSON file for each path: a
user's model may lie in a folder where we have no business writing. A note
counts only while the file's size and modification time are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class DigestStore:
    """The notes of one cache."""

    folder: Path

    def recall(self, path: Path) -> str | None:
        """Return the remembered digest, or None when the file changed since or was never hashed."""
        try:
            note = json.loads(self._note_of(path).read_text(encoding="utf-8"))
            state = path.stat()
        except (OSError, ValueError):
            return None
        if not isinstance(note, dict):
            return None
        unchanged = note.get("size") == state.st_size and note.get("mtime_ns") == state.st_mtime_ns
        digest = note.get("sha256")
        return digest if unchanged and isinstance(digest, str) else None

    def remember(self, path: Path, digest: str) -> None:
        """Note a digest that was just computed over the whole file."""
        state = path.stat()
        note = {
            "path": str(path.resolve()),
            "size": state.st_size,
            "mtime_ns": state.st_mtime_ns,
            "sha256": digest,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self._note_of(path)
        # Two processes may note the same file at once: a unique name and a rename keep both whole.
        draft = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def digest(self, path: Path) -> str:
        """Return the file's sha256, hashing it only if there is no valid note."""
        known = self.recall(path)
        if known is not None:
            return known
        fresh = hash_file(path)
        self.remember(path, fresh)
        return fresh

    def forget(self, path: Path) -> None:
        """Drop the note of a path."""
        self._note_of(path).unlink(missing_ok=True)

    def _note_of(self, path: Path) -> Path:
        key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        return self.folder / f"{path.name}.{key}.json"
