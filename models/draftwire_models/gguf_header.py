"""Reading the front of a GGUF file: metadata, and where each tensor's bytes must lie.

Enough to refuse a truncated, foreign or absurd file before llama.cpp or torch
meet it (llama.cpp says little, and some damage makes it end the process), and
to know the tokenizer's ids. The layout is specified in ggml's docs/gguf.md:

    "GGUF" version n_tensors n_fields          u32 u32 u64 u64, little endian
    n_fields x (name type value)               a list is: type count values
    n_tensors x (name n_dims dims type offset)
    padding to the alignment, then the tensors' data
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_models.errors import CorruptModelError, UnreadableModelError
from draftwire_models.gguf_sanity import absurdities
from draftwire_models.gguf_texts import Texts

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

# Kinds of tokens in tokenizer.ggml.token_type.
TOKEN_CONTROL = 3
TOKEN_USER_DEFINED = 4
TOKEN_UNUSED = 5

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml type: (weights in a block, bytes of a block). Types not listed are not checked for length.
_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Tensor:
    """One tensor's place in the file; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def weights(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """How many bytes it takes, 0 when the type is not known."""
        per_block, block_bytes = _BLOCKS.get(self.kind, (1, 0))
        return self.weights // per_block * block_bytes


@dataclass(frozen=True)
class GgufHeader:
    """Everything in front of the tensor data."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_start: int

    @property
    def architecture(self) -> str:
        """The model family, such as "qwen2"."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def weights(self) -> int:
        """How many numbers the model holds."""
        return sum(tensor.weights for tensor in self.tensors)


def read_header(path: Path) -> GgufHeader:
    """Read and check a GGUF file's front.

    Raises:
        CorruptModelError: the file is empty, cut off, no GGUF, or holds values that no model has.
        UnreadableModelError: there is no file, or it is a folder or may not be read.
    """
    with _mapped(path) as data:
        header = _Reader(path, data).header()
        size = len(data)
    for tensor in header.tensors:
        end = header.data_start + tensor.offset + tensor.size
        if end > size:
            raise CorruptModelError(
                path, f"it is truncated: tensor {tensor.name} ends at byte {end:,}, the file at {size:,}"
            )
    for reason in absurdities(header.metadata):
        raise CorruptModelError(path, reason)
    return header


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file's bytes, mapped: only the front is read from the disk."""
    try:
        with path.open("rb") as stream:
            if not stream.seek(0, 2):
                raise CorruptModelError(path, "it is empty")
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:  # missing, a folder, no permission, a device
        raise UnreadableModelError(path, error) from error
    with data:
        yield data


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self) -> GgufHeader:
        start = self._data[: len(MAGIC)]
        if start != MAGIC:
            raise self._damage(f"it does not start with the bytes GGUF but with {start!r}")
        self._at = len(MAGIC)
        version = self._number("I")
        if version not in VERSIONS:
            raise self._damage(f"its format version is {version}, only 2 and 3 are known")
        tensor_count, field_count = self._number("Q"), self._number("Q")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(field_count)}
        tensors = tuple(self._tensor() for _ in range(tensor_count))
        if not tensors:
            raise self._damage("it holds no tensors")
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damage(f"its alignment is {alignment!r}")
        return GgufHeader(metadata, tensors, self._at + -self._at % alignment)

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damage(f"tensor {name[:64]!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return Tensor(name, shape, self._number("I"), self._number("Q"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._number("I"), self._number("Q"))
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        raise self._damage(f"a metadata field has the unknown type {kind}")

    def _array(self, kind: int, count: int) -> Sequence[Any]:
        if kind == _STRING:
            return self._texts(count)
        if kind == _ARRAY:
            raise self._damage("it nests lists in its metadata")
        if kind not in _SCALARS:
            raise self._damage(f"a metadata list has the unknown type {kind}")
        code = _SCALARS[kind]
        # Asked before the layout is built: a damaged count may be astronomical.
        if count * struct.calcsize(f"<{code}") > self._size - self._at:
            raise self._damage(f"a list of {count:,} values does not fit into it")
        layout = struct.Struct(f"<{count}{code}")
        return list(layout.unpack(self._bytes(layout.size)))

    def _texts(self, count: int) -> Texts:
        """``count`` strings. One loop without calls of ours: it runs 300,000 times on an ordinary file."""
        data, at, last_length = self._data, self._at, self._size - _LENGTH.size
        length_at = _LENGTH.unpack_from
        raw = []
        for _ in range(count):
            if at > last_length:
                raise self._damage("it ends inside its header")
            start = at + _LENGTH.size
            at = start + length_at(data, at)[0]
            raw.append(data[start:at])
        self._at = at
        if at > self._size:
            raise self._damage("it ends inside its header")
        return Texts(raw)

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _bytes(self, count: int) -> bytes:
        start = self._at
        if count > self._size - start:
            raise self._damage("it ends inside its header")
        self._at = start + count
        return self._data[start : self._at]

    def _damage(self, reason: str) -> CorruptModelError:
        return CorruptModelError(self._path, reason)
