"""Identity of a vocabulary and of a chat template, cheap enough to compare before each generation.

The hash covers id -> bytes over the real ids only: padding rows of the logits have no text. Ids are
hashed in runs of ``CHUNK``, so that two ends that differ can find the first differing id by asking
for one run instead of sending 150,000 strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

CHUNK = 1024
HASH_BYTES = 8


def piece_hashes(pieces: Sequence[bytes]) -> bytes:
    """Hash of each run of ``CHUNK`` ids, 8 bytes a run, concatenated.

    Args:
        pieces: bytes of every real id, ``[n_tokens]``.
    """
    runs = (pieces[start : start + CHUNK] for start in range(0, len(pieces), CHUNK))
    return b"".join(_hash_run(run) for run in runs)


def _hash_run(run: Sequence[bytes]) -> bytes:
    """Hash of some ids' bytes; lengths are hashed too, so that no two lists look alike."""
    digest = blake2b(digest_size=HASH_BYTES)
    for piece in run:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.digest()


def template_hash(template: str | None) -> bytes:
    """Hash of a chat template's text; empty when there is none."""
    return blake2b(template.encode(), digest_size=HASH_BYTES).digest() if template else b""


def first_differing_run(ours: bytes, theirs: bytes) -> int | None:
    """First id of the first run whose hashes differ; None when all are equal.

    Args:
        ours, theirs: from ``piece_hashes``.
    """
    for start in range(0, max(len(ours), len(theirs)), HASH_BYTES):
        if ours[start : start + HASH_BYTES] != theirs[start : start + HASH_BYTES]:
            return start // HASH_BYTES * CHUNK
    return None


def first_differing_id(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int | None:
    """Index of the first difference between two runs of pieces; None when equal."""
    for index, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))
