"""Reading the front of a GGUF file: metadata, and where each tensor's bytes must lie.

Enough to refuse a truncated or foreign file before llama.cpp or torch meet it
(llama.cpp only says "failed to load model"), and to know the tokenizer's ids.
The layout is specified in ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from draftwire_models.errors import CorruptModelError

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
}


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
    """Read and check a GGUF file's front; raise CorruptModelError naming the damage."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        header = _Reader(path, stream, size).header()
    for tensor in header.tensors:
        end = header.data_start + tensor.offset + tensor.size
        if end > size:
            raise CorruptModelError(
                path, f"it is truncated: tensor {tensor.name} ends at byte {end:,}, the file at {size:,}"
            )
    return header


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self._path = path
        self._stream = stream
        self._left = size

    def header(self) -> GgufHeader:
        if self._bytes(4, "it has no content") != MAGIC:
            raise self._damage("it does not start with the bytes GGUF")
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
        position = self._stream.tell()
        return GgufHeader(metadata, tensors, position + -position % alignment)

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damage(f"tensor {name!r} has {dimensions} dimensions")
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

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _ARRAY:
            raise self._damage("it nests lists in its metadata")
        code = _SCALARS.get(kind)
        if code is None:
            return [self._value(kind) for _ in range(count)]
        # Asked before the layout is built: a damaged count may be astronomical.
        if count * struct.calcsize(f"<{code}") > self._left:
            raise self._damage(f"a list of {count:,} values does not fit into it")
        layout = struct.Struct(f"<{count}{code}")
        return list(layout.unpack(self._bytes(layout.size)))

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _bytes(self, count: int, reason: str = "it ends inside its header") -> bytes:
        if count > self._left:
            raise self._damage(reason)
        self._left -= count
        return self._stream.read(count)

    def _damage(self, reason: str) -> CorruptModelError:
        return CorruptModelError(self._path, reason)
