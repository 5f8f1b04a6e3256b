"""A GGUF file as a transformers folder, made once and kept in the cache.

Reading a GGUF takes transformers the better part of a minute each time, a
safetensors folder a second or two. The folder's name says what it was made of:
the file's digest, the dtype and the version of this converter. It appears by
one rename, so a folder that is there is complete.

One folder for each dtype: dequantised weights are float32, so the bfloat16
folder holds them rounded (which is what loading in bfloat16 gives anyway, at
half the size) and could not give the float32 ones back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from draftwire_cloud.gguf_tokenizer import end_of_generation_ids, save_tokenizer
from draftwire_models.cache import ModelCache
from draftwire_models.errors import ConversionError, DiskFullError, ModelError
from draftwire_models.gguf_header import GgufHeader, read_header
from draftwire_models.progress import Progress, SilentProgress
from draftwire_models.space import FreeBytes, disk_free, is_disk_full, require_room

Dtype: TypeAlias = Literal["bfloat16", "float32"]

# Raise it whenever the same GGUF gives another folder than before.
CONVERTER_VERSION = 1

_WEIGHT_BYTES = {"bfloat16": 2, "float32": 4}
_TOKENIZER_BYTES = 64 << 20


@dataclass(frozen=True)
class _Job:
    """One conversion."""

    gguf: Path
    header: GgufHeader
    dtype: Dtype
    progress: Progress


def ensure_safetensors(
    gguf: Path,
    out_root: Path,
    dtype: Dtype = "bfloat16",
    progress: Progress | None = None,
    free_bytes: FreeBytes = disk_free,
) -> Path:
    """Return the safetensors folder of a GGUF file, converting it if that was not done yet.

    Args:
        gguf: the model file.
        out_root: the root of a draftwire cache; the folder lies in its `converted`.
        dtype: of the weights, as stored and as loaded.
        progress: told about tensors as they are unpacked.
        free_bytes: how much room there is on the disk of a folder.

    Raises:
        CorruptModelError: the file is no whole GGUF; nothing was written.
        ConversionError: transformers cannot make a model of it; nothing was kept.
        DiskFullError: there is or was no room; nothing was kept.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype: {dtype!r} is not supported; choose one of {', '.join(get_args(Dtype))}")
    header = read_header(gguf)
    cache, progress = ModelCache(out_root), progress or SilentProgress()
    with cache.writable():
        folder = converted_folder(cache, gguf, dtype)
    if folder.is_dir():
        return folder
    with cache.lock(folder.name, progress):
        if not folder.is_dir():
            needed = header.weights * _WEIGHT_BYTES[dtype] + _TOKENIZER_BYTES
            require_room(folder.name, cache.root, needed, free_bytes)
            _convert(_Job(gguf, header, dtype, progress), cache, folder)
    return folder


def converted_folder(cache: ModelCache, gguf: Path, dtype: Dtype) -> Path:
    """Return where the conversion of a file lies, or will lie."""
    digest = cache.digests.digest(gguf)
    return cache.converted / f"{gguf.stem}-{digest[:12]}-{dtype}-v{CONVERTER_VERSION}"


def _convert(job: _Job, cache: ModelCache, folder: Path) -> None:
    """Write everything into a work folder and rename it to `folder`."""
    with cache.workspace(folder.name) as work:
        whole = work / "whole"
        try:
            # The tokenizer goes first: it is quick, and where it cannot be right nothing else matters.
            save_tokenizer(job.gguf, job.header, whole)
            _save_weights(job, whole)
            _make_durable(whole)
            folder.parent.mkdir(parents=True, exist_ok=True)
            whole.replace(folder)
        # transformers and its readers raise anything from KeyError to their own types.
        except Exception as error:
            raise _explained(error, job.gguf, cache.root) from error
        finally:
            job.progress.finish()


def _save_weights(job: _Job, folder: Path) -> None:
    """Dequantise the weights and save them with the configuration."""
    import torch  # noqa: PLC0415  # seconds to import; a finished conversion must not wait for it
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig  # noqa: PLC0415  # only while converting

    size = sum(tensor.size for tensor in job.header.tensors)
    job.progress.start(f"converting {job.gguf.name} to {job.dtype}", size)
    with _unpacking_reported(job.progress):
        model = AutoModelForCausalLM.from_pretrained(
            job.gguf.parent,
            gguf_file=job.gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=getattr(torch, job.dtype),
        )
        model.generation_config = GenerationConfig(
            bos_token_id=model.config.bos_token_id,
            pad_token_id=model.config.pad_token_id,
            eos_token_id=end_of_generation_ids(job.header),
        )
        job.progress.note(f"writing the {job.dtype} weights")
        model.save_pretrained(folder)


def _make_durable(folder: Path) -> None:
    """Force the files to the disk and give them ordinary permissions.

    safetensors writes files that only their owner may read; a service often
    runs as another user than the one who prepared its models.
    """
    for path in folder.iterdir():
        path.chmod(0o644)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _explained(error: Exception, gguf: Path, root: Path) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if is_disk_full(error):
        return DiskFullError(f"the conversion of {gguf.name}", root)
    return ConversionError(
        f"{gguf}: transformers could not convert this GGUF ({type(error).__name__}: {error})."
        " Nothing was kept. Pass the model's safetensors folder instead."
    )


@contextmanager
def _unpacking_reported(progress: Progress) -> Iterator[None]:
    """Show the work on our own bar: transformers offers no callback and draws three of its own."""
    from transformers import modeling_gguf_pytorch_utils  # noqa: PLC0415  # only while converting
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415  # only while converting

    drawn = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = lambda tensors, **_: _counted(tensors, progress)
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn
        if had_bars:
            transformers_logging.enable_progress_bar()


def _counted(tensors: Iterable[Any], progress: Progress) -> Iterator[Any]:
    for tensor in tensors:
        yield tensor
        progress.advance(int(tensor.n_bytes))
