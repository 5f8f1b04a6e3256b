"""A GGUF turned into a transformers folder once."""

import json
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwire_cloud.convert import Dtype, converted_folder, ensure_safetensors
from draftwire_cloud.gguf_tokenizer import end_of_generation_ids, save_tokenizer, vocabulary_size
from draftwire_models.cache import ModelCache
from draftwire_models.errors import ConversionError, CorruptModelError, DiskFullError
from draftwire_models.gguf_header import GgufHeader, read_header
from draftwire_models.pairs import QWEN25_CODER_15B, SMOLLM2_135M
from models.conftest import RecordingProgress, left_behind
from tiny.config import TinyConfig
from tiny.pair import TinyPair, make_tiny_pair
from tiny.texts import random_texts

PADDING = 7


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    config = TinyConfig(vocab_pad=PADDING, drafter_vocab_pad=PADDING)
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), config, noise=(0.0,))


@pytest.fixture(scope="module")
def gguf(tiny: TinyPair) -> Path:
    return tiny.drafters["perfect"]


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_safetensors(gguf, tmp_path_factory.mktemp("cache"), "float32")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return loaded


def test_the_weights_are_the_files_own_to_the_bit(tiny: TinyPair, converted: Path) -> None:
    mine, original = weights(converted), weights(tiny.target_folder)
    assert mine.keys() == original.keys()
    for name, tensor in original.items():
        assert torch.equal(mine[name], tensor.float()), name


def test_bfloat16_is_the_same_rounded_once(gguf: Path, converted: Path, cache: ModelCache) -> None:
    folder = ensure_safetensors(gguf, cache.root, "bfloat16")
    exact = weights(converted)
    for name, tensor in weights(folder).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, exact[name].bfloat16()), name


def test_the_folder_loads_without_the_gguf_and_says_the_same(tiny: TinyPair, converted: Path) -> None:
    ids = torch.tensor([[5, 80, 200, 7, 31]])
    mine: Any = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    original: Any = AutoModelForCausalLM.from_pretrained(tiny.target_folder, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(mine(input_ids=ids).logits, original(input_ids=ids).logits)


def test_the_tokenizer_is_the_same_without_padding_ids(tiny: TinyPair, converted: Path) -> None:
    mine, original = (AutoTokenizer.from_pretrained(f) for f in (converted, tiny.target_folder))
    assert len(mine) == len(original) == tiny.config.n_tokens
    assert mine.get_vocab() == original.get_vocab()
    assert mine.chat_template == original.chat_template
    for text in random_texts(300, seed=7):
        assert mine(text)["input_ids"] == original(text)["input_ids"], repr(text)
        assert mine.decode(mine(text)["input_ids"]) == text


def test_every_end_of_generation_id_is_listed(tiny: TinyPair, converted: Path) -> None:
    mine, original = (
        json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        for folder in (converted, tiny.target_folder)
    )
    assert sorted(mine) == sorted(original)
    assert mine[0] == json.loads((tiny.target_folder / "config.json").read_text())["eos_token_id"]


def test_an_end_is_a_control_token_with_an_ends_name() -> None:
    tokens = ["a", "</s>", "<|endoftext|>", "<|file_sep|>", "<|im_end|>", "<pad>"]
    fields = {
        "tokenizer.ggml.tokens": tokens,
        # Qwen has "</s>" as a plain word: stopping there would cut texts that the target writes.
        "tokenizer.ggml.token_type": [1, 1, 3, 3, 3, 5],
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.eot_token_id": 3,
    }
    header = GgufHeader(fields, (), 0)
    assert end_of_generation_ids(header) == [4, 3, 2]
    assert vocabulary_size(header) == 5


def test_a_second_call_returns_what_is_there(gguf: Path, converted: Path) -> None:
    root = converted.parents[1]
    before = {path: path.stat().st_mtime_ns for path in converted.iterdir()}
    progress = RecordingProgress()
    assert ensure_safetensors(gguf, root, "float32", progress) == converted
    assert {path: path.stat().st_mtime_ns for path in converted.iterdir()} == before
    assert progress.started == []


def test_only_the_finished_folder_is_left_and_others_may_read_it(gguf: Path, converted: Path) -> None:
    left = [p for p in left_behind(ModelCache(converted.parents[1])) if not p.startswith("digests/")]
    assert {p.split("/")[0] for p in left} == {"converted"}
    assert {oct(path.stat().st_mode & 0o777) for path in converted.iterdir()} == {"0o644"}
    assert converted.name.startswith(f"{gguf.stem}-")


def test_progress_counts_every_tensors_bytes(gguf: Path, cache: ModelCache) -> None:
    progress = RecordingProgress()
    ensure_safetensors(gguf, cache.root, "bfloat16", progress)
    size = sum(tensor.size for tensor in read_header(gguf).tensors)
    assert progress.started == [(f"converting {gguf.name} to bfloat16", size)]
    assert (progress.bytes, progress.open) == (size, 0)


def test_another_file_or_dtype_is_another_folder(tiny: TinyPair, cache: ModelCache) -> None:
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float32")
    folders = {converted_folder(cache, path, d) for path in tiny.drafters.values() for d in dtypes}
    assert len(folders) == 2 * len(tiny.drafters)


def test_a_corrupt_file_is_refused_before_anything_is_written(gguf: Path, cache: ModelCache) -> None:
    cut = cache.root.parent / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:-500])
    with pytest.raises(CorruptModelError, match=r"cut\.gguf.*truncated.*fetch it again"):
        ensure_safetensors(cut, cache.root)
    assert not cache.root.exists()


def test_an_architecture_nobody_knows_leaves_nothing(gguf: Path, cache: ModelCache) -> None:
    foreign = cache.root.parent / "foreign.gguf"
    foreign.write_bytes(gguf.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ConversionError, match=r"foreign\.gguf.*safetensors folder instead"):
        ensure_safetensors(foreign, cache.root)
    assert [p for p in left_behind(cache) if not p.startswith("digests/")] == []


def test_too_little_room_is_said_first(gguf: Path, cache: ModelCache) -> None:
    with pytest.raises(DiskFullError, match="1,000 free"):
        ensure_safetensors(gguf, cache.root, "float32", free_bytes=lambda _: 1_000)
    assert [p for p in left_behind(cache) if not p.startswith("digests/")] == []


def test_an_unknown_dtype_is_named(gguf: Path, cache: ModelCache) -> None:
    wrong: Any = "int8"
    with pytest.raises(ValueError, match=r"dtype: 'int8'.*bfloat16, float32"):
        ensure_safetensors(gguf, cache.root, wrong)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kB: room for the tokenizer, none for the weights; only root may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no permission to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_is_left_clean(gguf: Path, small_disk: Path) -> None:
    cache = ModelCache(small_disk / "cache")
    with pytest.raises(DiskFullError, match=r"the conversion of perfect\.gguf"):
        ensure_safetensors(gguf, cache.root, "float32", free_bytes=lambda _: 1 << 50)
    assert [p for p in left_behind(cache) if not p.startswith("digests/")] == []


FIXED_TEXTS = ["\n3 + 1234567", "<|im_start|>user\nHi<|im_end|>", "½ Ⅷ ²", "  def f(x):\n\t\treturn 😀"]


def assert_cuts_alike(folder: Path, gguf: Path) -> None:
    """Compare a converted tokenizer with llama.cpp's, over texts in Unicode's composed form.

    Qwen's published tokenizer composes first (NFC) and llama.cpp does not, so only there they agree.
    """
    llama_cpp = pytest.importorskip("llama_cpp")
    mine = AutoTokenizer.from_pretrained(folder)
    theirs = llama_cpp.Llama(str(gguf), vocab_only=True, verbose=False)
    for raw in [*FIXED_TEXTS, *random_texts(500, seed=3)]:
        text = unicodedata.normalize("NFC", raw)
        expected = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert mine(text, add_special_tokens=False)["input_ids"] == expected, repr(text)


@pytest.mark.real
def test_smollms_tokenizer_cuts_texts_as_llama_cpp_does(tmp_path: Path) -> None:
    cache = ModelCache.open()
    path = cache.path_of(SMOLLM2_135M)
    if not cache.has(SMOLLM2_135M):
        pytest.skip("not fetched: draftwire models pull smollm2-self")
    save_tokenizer(path, read_header(path), tmp_path)
    assert_cuts_alike(tmp_path, path)


@pytest.mark.real
def test_the_default_targets_tokenizer_cuts_texts_as_llama_cpp_does() -> None:
    cache = ModelCache.open()
    path = cache.path_of(QWEN25_CODER_15B)
    if not cache.has(QWEN25_CODER_15B):
        pytest.skip("not fetched: draftwire models pull")
    folder = converted_folder(cache, path, "bfloat16")
    if not folder.is_dir():
        pytest.skip("not converted yet: serve it once")
    assert len(AutoTokenizer.from_pretrained(folder)) == 151_665
    assert_cuts_alike(folder, path)
