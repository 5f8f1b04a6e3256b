"""Random weights that cost what the real ones cost."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.proposer import Proposer
from draftwire_models.cache import ModelCache
from draftwire_models.progress import SilentProgress
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.shuffled_model import shuffled_model, write_shuffled
from tiny.pair import make_tiny_pair

Q8 = GGMLQuantizationType.Q8_0


def quantised(path: Path) -> Path:
    """A file with matrices of two kinds, and what must stay."""
    random = np.random.default_rng(3)
    writer = GGUFWriter(path, "llama")
    for name in ("token_embd.weight", "output.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"):
        weights = random.normal(size=(8, 64)).astype(np.float32)
        writer.add_tensor(name, quantize(weights, Q8), raw_dtype=Q8)
    writer.add_tensor("blk.0.attn_q.weight", random.normal(size=(4, 6)).astype(np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", random.normal(size=16).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(path).tensors}


def test_blocks_change_places_inside_their_matrix_and_stay_whole(tmp_path: Path) -> None:
    model, made = quantised(tmp_path / "model.gguf"), tmp_path / "made.gguf"
    write_shuffled(model, made, 0, SilentProgress())
    assert made.stat().st_size == model.stat().st_size
    before, after = tensors(model), tensors(made)
    for name, size in (
        ("blk.0.ffn_up.weight", 32),
        ("blk.0.ffn_down.weight", 32),
        ("blk.0.attn_q.weight", 1),
    ):
        blocks = [sorted(map(tuple, one[name].reshape(-1, size))) for one in (before, after)]
        assert blocks[0] == blocks[1]
        assert not np.array_equal(before[name], after[name])
    for name in ("token_embd.weight", "output.weight", "blk.0.attn_norm.weight"):
        assert np.array_equal(before[name], after[name])


def test_same_seed_same_file(tmp_path: Path) -> None:
    model = quantised(tmp_path / "model.gguf")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_shuffled(model, tmp_path / name, seed, SilentProgress())
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_it_is_made_once(tmp_path: Path) -> None:
    model, cache = quantised(tmp_path / "model.gguf"), ModelCache.open(tmp_path / "cache")
    made = shuffled_model(model, SilentProgress(), cache)
    stamp = made.stat().st_mtime_ns
    assert shuffled_model(model, SilentProgress(), cache) == made
    assert made.stat().st_mtime_ns == stamp
    assert not list((cache.root / "partial").iterdir())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_its_guesses_are_finite_and_of_no_use(tmp_path: Path) -> None:
    """The real draft model's share of right guesses is about 0.7; see BENCHMARKS.md for this one's."""
    perfect = make_tiny_pair(tmp_path, noise=(0.0,)).drafters["perfect"]
    made = tmp_path / "made.gguf"
    write_shuffled(perfect, made, 0, SilentProgress())
    written = []
    for path in (perfect, made):
        drafter = LlamaCppDrafter(path, threads=1)
        block = drafter.draft([1, 2, 3], Proposer(SamplingParams()), 40, lambda _: True)
        written.append([guess.token for guess in block])
        assert all(0.0 < guess.top_probability <= 1.0 for guess in block)
        drafter.close()
    assert sum(a == b for a, b in zip(*written, strict=True)) < 10
