"""Which model a text was begun with, in eight bytes."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from draftwire_cloud.engine.facts import ModelFacts

#: Bytes at either end of a weights file that stand for all of it: reading gigabytes would delay every start.
_END_BYTES = 64 << 10


def model_id(folder: Path, facts: ModelFacts, *, fixed_shapes: bool) -> bytes:
    """Differs between targets that may write different texts; names and places do not matter.

    Args:
        folder: holds the weights, ``*.safetensors``.
        facts: of the loaded target.
        fixed_shapes: whether shapes are padded.
    """
    digest = blake2b(digest_size=8)
    device = facts.device.partition(":")[0]
    digest.update(repr((facts.architecture, facts.dtype, facts.weights, device, fixed_shapes)).encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(repr((path.name, size)).encode())
        with path.open("rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read())
    return digest.digest()
