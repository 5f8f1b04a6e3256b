"""A draft model of random weights: as fast as the real one, and of no use.

Inside each matrix of the real one the quantised blocks change places. A block holds its own scale, so each
stays valid, the weights keep their sizes, the file its shape, and llama.cpp takes the same time for it. The
token embeddings and the output matrix stay, or the scores would not have the spread of a real model's.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from draftwire_models.cache import ModelCache
from draftwire_models.gguf_header import GgufHeader, Tensor, read_header
from draftwire_models.progress import Progress
from draftwire_models.space import disk_free, require_room

#: Matrices with a row for each id.
_KEPT = ("token_embd.weight", "output.weight")
#: Part of the name; to be raised when other bytes are written.
_VERSION = 1


def shuffled_model(model: Path, progress: Progress, cache: ModelCache | None = None, seed: int = 0) -> Path:
    """The model with its blocks shuffled, made once and then kept in the cache.

    Args:
        model: a GGUF file.
        progress: told how far it is.
        cache: where it is kept; None for the default one.
        seed: same seed, same file.

    Raises:
        DiskFullError: there is no room for it.
        CorruptModelError, UnreadableModelError: ``model`` holds no sound model.
    """
    cache = cache or ModelCache.open()
    digest = cache.digests.digest(model)[:12]
    path = cache.root / "shuffled" / f"{model.stem}-{digest}-seed{seed}-v{_VERSION}.gguf"
    with cache.lock(path.name, progress):
        if path.is_file():
            return path
        with cache.workspace(path.name) as folder:
            require_room(path.name, folder, model.stat().st_size, disk_free)
            with cache.writable():
                write_shuffled(model, folder / path.name, seed, progress)
                path.parent.mkdir(exist_ok=True)
                (folder / path.name).replace(path)
    return path


def write_shuffled(model: Path, path: Path, seed: int, progress: Progress) -> None:
    """Write ``model`` to ``path`` with the blocks of its matrices shuffled."""
    header = read_header(model)
    data = np.memmap(model, np.uint8, "r")
    progress.start(f"shuffling the weights of {model.name}", len(data))
    try:
        with path.open("wb") as out:
            written = 0
            for start, tensor in sorted((header.data_start + one.offset, one) for one in _matrices(header)):
                blocks = data[start : start + tensor.size].reshape(-1, _block_bytes(tensor))
                random = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
                out.write(data[written:start].data)
                out.write(random.permutation(blocks).data)
                progress.advance(start + tensor.size - written)
                written = start + tensor.size
            out.write(data[written:].data)
            progress.advance(len(data) - written)
    finally:
        progress.finish()


def _matrices(header: GgufHeader) -> list[Tensor]:
    """What is shuffled: norms and biases have one dimension."""
    return [one for one in header.tensors if len(one.shape) > 1 and one.size and one.name not in _KEPT]


def _block_bytes(tensor: Tensor) -> int:
    return int(GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)][1])
