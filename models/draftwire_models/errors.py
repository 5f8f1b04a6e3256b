"""What can go wrong between a pair's name and a model on disk.

    ModelError
    ├── UnknownPairError    (also ValueError)         no such pair, and no such path
    ├── ModelMissingError   (also FileNotFoundError)  known, but not in the cache yet
    ├── CacheFolderError                              the cache folder cannot be used
    ├── UnreadableModelError (also OSError)           a path with no model that can be read
    ├── CorruptModelError   (also ValueError)         a file that is no whole GGUF
    ├── ConversionError                               a sound GGUF that cannot be converted
    └── DownloadError                                 no source gave the file
        ├── HashMismatchError                         a source gave another file
        └── DiskFullError                             no room for it

DownloadError and all below it end the command line with exit code 1; the others
are about what the user typed or has, and end it with exit code 2.
Every message says what happened and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ModelError(Exception):
    """Anything that keeps a model from being ready on disk."""


class UnknownPairError(ModelError, ValueError):
    """A name that is neither a pair of the table nor a path."""

    def __init__(self, argument: str, given: str, known: Iterable[str], *, or_path: bool = False) -> None:
        """Name the argument, what was given for it and the pairs there are."""
        what = "no known model pair and no existing path" if or_path else "no known model pair"
        names = sorted(known)
        close = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(f"{argument}: {given!r} is {what}.{hint} Known pairs: {', '.join(names)}.")
        self.given = given
        self.suggestion = close[0] if close else None


class ModelMissingError(ModelError, FileNotFoundError):
    """A known model that has not been fetched yet."""

    def __init__(self, pair: str, role: str, path: Path) -> None:
        """Name the pair, its role and the command that fetches it."""
        super().__init__(
            f"the {role} model of pair {pair!r} is not in the cache ({path})."
            f" Fetch it with: draftwire models pull {pair} --{role}-only"
        )


class CacheFolderError(ModelError):
    """A cache folder that cannot be created or written."""

    def __init__(self, folder: Path, reason: str) -> None:
        """Name the folder, the reason and the two ways to choose another."""
        super().__init__(
            f"cannot write to the cache folder {folder}: {reason}."
            " Choose another one with --cache-dir or DRAFTWIRE_CACHE_DIR."
        )


class UnreadableModelError(ModelError, OSError):
    """A path with no model to read: nothing is there, a folder of other things, no permission."""

    def __init__(self, path: Path, cause: Exception | str, wanted: str = "one GGUF file") -> None:
        """Name the path, what is wrong with it or what the system says about it, and what it should be."""
        reason = getattr(cause, "strerror", None) or str(cause)
        super().__init__(
            f"{path} cannot be read as a model: {reason}."
            f" Check the path and its permissions; it must name {wanted}."
        )
        self.path = path


class CorruptModelError(ModelError, ValueError):
    """A model file that is truncated, damaged or no GGUF at all."""

    def __init__(self, path: Path, reason: str) -> None:
        """Name the file, the damage and the fix."""
        super().__init__(
            f"{path} is not a whole GGUF model file: {reason}."
            " Delete it and fetch it again (draftwire models pull), or pass another file."
        )
        self.path = path
        self.reason = reason


class ConversionError(ModelError):
    """A readable GGUF that cannot become a transformers model."""


class DownloadError(ModelError):
    """No source could deliver a file."""


class HashMismatchError(DownloadError):
    """A source delivered bytes that are not the published file."""

    def __init__(self, name: str, expected: str, got: str, source: str) -> None:
        """Show both digests and where the bytes came from."""
        super().__init__(
            f"{name} from {source} has sha256 {got}, expected {expected}."
            " Nothing was kept. Try again later, or fetch the file yourself and pass its path."
        )


class DiskFullError(DownloadError):
    """The cache folder's disk has no room for the file."""

    def __init__(self, what: str, folder: Path, needed: int | None = None, free: int | None = None) -> None:
        """Say how much is missing, when known, and where room is needed."""
        amounts = "" if needed is None or free is None else f" (needs {needed:,} bytes, {free:,} free)"
        super().__init__(
            f"no room for {what} on the disk of {folder}{amounts}. Nothing half-written was kept."
            " Free some space, or choose another disk with --cache-dir or DRAFTWIRE_CACHE_DIR."
        )
