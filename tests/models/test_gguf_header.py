"""Reading a GGUF file's front, and refusing what is damaged."""

import struct
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from draftwire_models.errors import CorruptModelError
from draftwire_models.gguf_header import _BLOCKS, read_header
from tiny.config import TinyConfig
from tiny.gguf_file import write_gguf
from tiny.weights import build_weights


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    config = TinyConfig()
    write_gguf(path, config, build_weights(config, config.drafter_rows))
    return path


def test_it_reads_what_the_reference_reader_reads(tiny_gguf: Path) -> None:
    header, reference = read_header(tiny_gguf), GGUFReader(tiny_gguf)
    assert header.data_start == reference.data_offset
    assert [(t.name, t.size, header.data_start + t.offset) for t in header.tensors] == [
        (t.name, int(t.n_bytes), int(t.data_offset)) for t in reference.tensors
    ]
    for key, value in header.metadata.items():
        assert value == reference.fields[key].contents(), key


def test_the_sizes_of_tensor_types_are_the_published_ones() -> None:
    published = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items() if int(kind) in _BLOCKS}
    assert published == _BLOCKS
    assert {GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K, GGMLQuantizationType.Q4_1} <= set(_BLOCKS)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.1, 0.5, 0.9, 0.999999])
def test_a_file_cut_short_anywhere_is_refused(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    content = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CorruptModelError, match=r"cut\.gguf is not a whole GGUF.*fetch it again"):
        read_header(cut)


@pytest.mark.parametrize(
    ("at", "replacement", "reason"),
    [
        (0, b"GGML", "does not start with"),
        (4, struct.pack("<I", 1), "version is 1"),
        (8, struct.pack("<Q", 0), "holds no tensors"),
        (8, struct.pack("<Q", 1 << 60), "ends inside its header|dimensions"),
        (16, struct.pack("<Q", 1 << 60), "ends inside its header|unknown type"),
        (24, struct.pack("<Q", 1 << 60), "ends inside its header"),
    ],
)
def test_damage_is_named(tiny_gguf: Path, tmp_path: Path, at: int, replacement: bytes, reason: str) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    content[at : at + len(replacement)] = replacement
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    with pytest.raises(CorruptModelError, match=reason):
        read_header(damaged)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (struct.pack("<IIQ", 9, 4, 1 << 50), "does not fit"),
        (struct.pack("<IIQ", 9, 9, 1), "nests lists"),
        (struct.pack("<I", 77), "unknown type 77"),
    ],
)
def test_a_damaged_list_is_refused_without_reading_it(tmp_path: Path, field: bytes, reason: str) -> None:
    path = tmp_path / "list.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1) + b"k" + field)
    with pytest.raises(CorruptModelError, match=reason):
        read_header(path)


@given(noise=st.binary(max_size=300))
def test_noise_behind_the_magic_is_refused_and_never_crashes(
    noise: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("noise") / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + noise)
    with pytest.raises(CorruptModelError):
        read_header(path)
