"""Reading a GGUF file's front, and refusing what is damaged."""

import struct
import time
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_models.cache import ModelCache
from draftwire_models.errors import CorruptModelError, UnreadableModelError
from draftwire_models.gguf_header import _BLOCKS, read_header
from draftwire_models.gguf_sanity import absurdities
from draftwire_models.gguf_texts import Texts
from draftwire_models.pairs import QWEN25_CODER_05B
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
        plain = list(value) if isinstance(value, Texts) else value
        assert plain == reference.fields[key].contents(), key


def test_the_sizes_of_tensor_types_are_the_published_ones() -> None:
    published = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items() if int(kind) in _BLOCKS}
    assert published == _BLOCKS
    assert {GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K, GGMLQuantizationType.Q4_1} <= set(_BLOCKS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_file_cut_short_anywhere_is_refused(
    tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = tiny_gguf.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut.gguf"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(CorruptModelError, match=r"cut\.gguf is not a whole GGUF.*fetch it again"):
        read_header(cut)


def test_an_interrupted_download_says_how_much_is_there(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    half = tmp_path / "half.gguf"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptModelError, match=rf"ends at byte [\d,]+, the file at {len(whole) // 2:,}"):
        read_header(half)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"GGUF", "ends inside its header"),
        (b"<!DOCTYPE html>" * 9, "does not start with the bytes GGUF but with b'<!DO'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "does not start with"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "version is 50331648"),
    ],
)
def test_what_is_no_gguf(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModelError, match=rf"odd\.gguf .*{reason}"):
        read_header(path)


def test_where_no_file_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        UnreadableModelError, match=r"none\.gguf cannot be read as a model: No such file.*Check the path"
    ):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(UnreadableModelError, match="Is a directory"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("at", "replacement", "reason"),
    [
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


# The type that stands behind a field's name, which tells head_count from head_count_kv.
_KINDS = {"<I": struct.pack("<I", 4), "<f": struct.pack("<I", 6)}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("llama.block_count", 0, "0 layers"),
        ("llama.block_count", 513, "513 layers"),
        ("llama.block_count", 2**32 - 1, "4,294,967,295 layers"),
        ("llama.context_length", 0, "context is 0 tokens"),
        ("llama.context_length", 2, "context is 2 tokens"),
        ("llama.attention.head_count", 5, "5 attention heads cannot share 2 key heads"),
        ("llama.attention.head_count_kv", 3, "4 attention heads cannot share 3 key heads"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, r"epsilon is -1\.0"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "epsilon is nan"),
    ],
)
def test_sizes_that_no_model_has_are_refused(
    tiny_gguf: Path, tmp_path: Path, name: str, value: float, reason: str
) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    code = "<f" if name.endswith("epsilon") else "<I"
    struct.pack_into(code, content, content.index(name.encode() + _KINDS[code]) + len(name) + 4, value)
    path = tmp_path / "absurd.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModelError, match=rf"absurd\.gguf .*{reason}"):
        read_header(path)


@pytest.mark.parametrize(
    ("heads", "key_heads"),
    [(4, 2), (4, 0), (0, None), ([4, 0], [2, 0]), (4, [1, 2, 4]), ([8, 4], 4), ("x", [1]), (["x"], 2)],
)
def test_heads_that_are_left_alone(heads: object, key_heads: object) -> None:
    """Zeros stand for layers without attention, and what is no number is for llama.cpp to refuse."""
    assert not list(absurdities(_with_heads(heads, key_heads)))


@pytest.mark.parametrize(("heads", "key_heads"), [([8, 4], [4, 3]), (8, [4, 3]), ([8, 5], 4)])
def test_heads_are_compared_layer_by_layer(heads: object, key_heads: object) -> None:
    assert len(list(absurdities(_with_heads(heads, key_heads)))) == 1


def _with_heads(heads: object, key_heads: object) -> dict[str, object]:
    name = "mix.attention.head_count"
    return {"general.architecture": "mix", name: heads, f"{name}_kv": key_heads}


@pytest.mark.parametrize(
    ("texts", "twice"),
    [
        ([b"a", b"b"], False),
        ([b"a", b"b", b"a"], True),
        ([b"", b"a", b"", b""], False),
        ([b"", b"a", b"", b"a"], True),
        ([b"a\0b", b"a\0c"], True),
        ([b"\0b", b"\0c", b"a"], False),
        ([], False),
    ],
)
def test_a_vocabulary_with_twins_is_refused(texts: list[bytes], *, twice: bool) -> None:
    reasons = list(absurdities({"tokenizer.ggml.tokens": Texts(texts)}))
    assert reasons == ["its vocabulary has the same text twice"] * twice


def test_twins_in_a_file(tiny_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "twins.gguf"
    path.write_bytes(tiny_gguf.read_bytes().replace(_text(b"A"), _text(b"B"), 1))
    with pytest.raises(CorruptModelError, match=r"twins\.gguf .*same text twice"):
        read_header(path)


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def test_texts_are_a_sequence() -> None:
    texts = Texts([b"a", "é".encode(), b"\xff"])
    assert list(texts) == ["a", "é", "\ufffd"]
    assert (texts[1], texts[-3:2], len(texts)) == ("é", ["a", "é"], 3)
    assert "é" in texts


def test_the_front_of_a_real_model_is_read_quickly() -> None:
    """A vocabulary of 151,936 and 151,387 merges; 0.1 s on a slow machine, doubled twice for busy ones."""
    path = ModelCache.open().path_of(QWEN25_CODER_05B)
    if not path.is_file():
        pytest.skip("the default pair is not in the cache")
    started = time.perf_counter()
    header = read_header(path)
    assert time.perf_counter() - started < 0.4
    assert [len(header.metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "merges")] == [
        151936,
        151387,
    ]


@given(noise=st.binary(max_size=300))
def test_noise_behind_the_magic_is_refused_and_never_crashes(
    noise: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("noise") / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + noise)
    with pytest.raises(CorruptModelError):
        read_header(path)
