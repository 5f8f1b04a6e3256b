"""Whether a file is a whole GGUF, checked before llama.cpp sees it.

llama.cpp reports a damaged file with a line in its log, and some damage ends the process. This check
walks the header once, reads no weights, and says what is wrong and what to do.

    "GGUF" version n_tensors n_keys            u32 u32 u64 u64, little endian
    n_keys x (name type value)                 an array is: type count values
    n_tensors x (name n_dims dims type offset)
    padding to the alignment, then the tensors' data
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from draftwire_protocol.errors import UserInputError

OPTION = "--model"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
#: Value type -> bytes, for the types of fixed size: u8 i8 u16 i16 u32 i32 f32 bool u64 i64 f64.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
#: Values in a block -> tensor type -> bytes of a block.
_BYTES_BY_BLOCK = {
    1: {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2},
    32: {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 40, 20: 18, 39: 17},
    64: {40: 36},
    128: {41: 18},
    256: {10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 15: 292, 16: 66, 17: 74, 18: 98, 19: 50}
    | {21: 110, 22: 82, 23: 136, 29: 56, 34: 54, 35: 66},
}
#: Tensor type -> (values in a block, bytes of a block). A type not listed counts as no bytes.
TENSOR_TYPES = {
    kind: (block, size) for block, sizes in _BYTES_BY_BLOCK.items() for kind, size in sizes.items()
}
_MAX_DIMENSIONS = 4


class _DamagedError(Exception):
    """What is wrong with the file, for the message."""


class _Header:
    """A cursor over the header.

    Args:
        data: the file.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0

    def skip(self, count: int) -> None:
        """Move on by ``count`` bytes."""
        self.at += count
        if self.at > self.size:
            raise _DamagedError(f"it ends inside its header, after {self.size:,} bytes")

    def number(self, code: str) -> int:
        """The next little-endian integer, ``code`` as in ``struct``."""
        start = self.at
        self.skip(struct.calcsize(code))
        return int(struct.unpack_from("<" + code, self.data, start)[0])

    def text(self) -> bytes:
        """The next string."""
        length = self.number("Q")
        start = self.at
        self.skip(length)
        return self.data[start : self.at]

    def value(self, kind: int, *, distinct: bool = False) -> int | None:
        """Pass over a value; returned when it is a 32-bit integer.

        Args:
            kind: its type.
            distinct: a list of texts that must differ from each other.
        """
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            self._array(distinct=distinct)
        elif kind in (4, 5):
            return self.number("I")
        elif kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        else:
            raise _DamagedError(f"it names a value type {kind} that does not exist")
        return None

    def _array(self, *, distinct: bool) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self._strings(count, distinct=distinct)
        elif kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind] * count)
        else:
            raise _DamagedError(f"it names an array of type {kind}")

    def _strings(self, count: int, *, distinct: bool) -> None:
        """Pass over ``count`` strings; inlined because a vocabulary and its merges have 300,000."""
        data, at, size = self.data, self.at, self.size
        texts = set()
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > size:
                break
            if distinct:
                texts.add(data[start:at])
        self.at = at
        self.skip(0)
        if distinct and len(texts) < count:
            raise _DamagedError("its vocabulary has the same text twice")


def check_gguf(path: Path) -> None:
    """Check that ``path`` is a GGUF file whose header and tensors all lie inside it.

    Raises:
        UserInputError: naming the file, what is wrong with it and the fix.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check_size(_Header(data))
    except FileNotFoundError as error:
        raise UserInputError(OPTION, f"there is no file {path}", "Check the path") from error
    except _DamagedError as damage:
        raise UserInputError(
            OPTION, f"{path} cannot be used as a draft model, {damage}", "Download it again"
        ) from damage
    except (OSError, ValueError) as error:  # a folder, no permission; an empty file cannot be mapped
        raise UserInputError(
            OPTION, f"{path} cannot be read ({error})", "Name a GGUF file, e.g. model-q4_k_m.gguf"
        ) from error


def _check_size(header: _Header) -> None:
    """Walk the header and compare the end of the last tensor with the file's size."""
    n_tensors, n_keys = _counts(header)
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(n_keys):
        name, kind = header.text(), header.number("I")
        # llama.cpp ends the process when two tokens have the same text.
        value = header.value(kind, distinct=name == b"tokenizer.ggml.tokens")
        if name == b"general.alignment" and value:
            alignment = value
    end = max((_tensor_end(header) for _ in range(n_tensors)), default=0)
    needed = -(-header.at // alignment) * alignment + end
    if n_tensors and needed > header.size:
        raise _DamagedError(f"it is cut off: {header.size:,} of {needed:,} bytes are there")


def _counts(header: _Header) -> tuple[int, int]:
    """(n_tensors, n_keys) of a header that starts as it should."""
    start = header.data[:4]
    if start != _MAGIC:
        raise _DamagedError(f"it is not a GGUF file: it starts with {start!r} instead of {_MAGIC!r}")
    header.skip(4)
    version = header.number("I")
    if version not in _VERSIONS:
        raise _DamagedError(f"it says GGUF version {version}; versions {_VERSIONS} are known")
    return header.number("Q"), header.number("Q")


def _tensor_end(header: _Header) -> int:
    """Pass over one tensor's entry; where its data ends, in bytes from the start of all data."""
    name = header.text()
    n_dims = header.number("I")
    if n_dims > _MAX_DIMENSIONS:
        raise _DamagedError(f"tensor {name[:64]!r} has {n_dims} dimensions")
    count = 1
    for _ in range(n_dims):
        count *= header.number("Q")
    block, size = TENSOR_TYPES.get(header.number("I"), (1, 0))
    return header.number("Q") + count // block * size
