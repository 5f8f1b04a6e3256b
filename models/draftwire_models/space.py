"""Room on the disk: asking before, and recognising the error when it still ran out."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from draftwire_models.errors import DiskFullError

FreeBytes: TypeAlias = Callable[[Path], int]

# Left free on purpose: a disk filled to the last byte breaks other programs.
RESERVE_BYTES = 64 << 20

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# Text forms used by pip and by native writers, which do not hand on an errno.
_FULL_TEXTS = ("no space left on device", "disk quota exceeded", "os error 28", "os error 122")


def disk_free(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    return shutil.disk_usage(existing).free


def require_room(what: str, folder: Path, needed: int, free_bytes: FreeBytes) -> None:
    """Raise DiskFullError unless `needed` bytes and a reserve are free."""
    free = free_bytes(folder)
    if free < needed + RESERVE_BYTES:
        raise DiskFullError(what, folder, needed + RESERVE_BYTES, free)


def is_disk_full(error: BaseException) -> bool:
    """Tell whether an error, or one that caused it, means that the disk is full."""
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return True
    if says_disk_full(str(error)):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_disk_full(cause)


def says_disk_full(text: str) -> bool:
    """Tell whether a program's message means that the disk is full."""
    lowered = text.lower()
    return any(phrase in lowered for phrase in _FULL_TEXTS)
