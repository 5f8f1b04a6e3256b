"""Damaged files are refused with their name and the fix, before llama.cpp sees them."""

from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwire_edge.gguf_file import TENSOR_TYPES, check_gguf
from draftwire_edge.llama_model import LlamaModel
from draftwire_protocol.errors import DrafterError, UserInputError
from tiny import make_tiny_pair


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), noise=(0.0,)).drafters["perfect"]


def test_a_whole_file_passes(good: Path) -> None:
    check_gguf(good)


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    assert {kind: TENSOR_TYPES[kind] for kind in theirs if kind in TENSOR_TYPES} == {
        kind: size for kind, size in theirs.items() if kind in TENSOR_TYPES
    }
    assert set(TENSOR_TYPES) <= set(theirs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGUF", "ends inside its header"),
        (b"<!DOCTYPE html>" * 9, "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "GGUF version 9"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "GGUF version 50331648"),
    ],
)
def test_what_is_no_gguf(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(UserInputError, match=message) as caught:
        check_gguf(path)
    assert "odd.gguf" in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"no file .*nothing\.gguf"):
        check_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(UserInputError, match="cannot be read"):
        check_gguf(tmp_path)


def test_interrupted_download_says_how_much_is_there(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    whole = good.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserInputError, match=r"cut off: [\d,]+ of [\d,]+ bytes.*Download it again"):
        check_gguf(path)


def test_equal_token_texts_are_refused(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "twins.gguf"
    path.write_bytes(good.read_bytes().replace(b"<|im_start|>", b"<|im_twins|>", 1).replace(b"A", b"B", 1))
    with pytest.raises(UserInputError, match="same text twice"):
        check_gguf(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_prefix_is_refused(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = good.read_bytes()
    path = tmp_path / "prefix.gguf"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 64))])
    with pytest.raises(UserInputError):
        check_gguf(path)


def test_what_only_llama_cpp_notices_is_quoted(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    path.write_bytes(good.read_bytes().replace(b"general.architecture", b"general.architectura", 1))
    with pytest.raises(DrafterError, match=r"cannot load .*strange\.gguf: .*architecture"):
        LlamaModel(path)
