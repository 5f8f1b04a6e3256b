from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwire_cloud.engine import packing, probe
from draftwire_cloud.engine.arena import Arena
from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.facts import context_length
from draftwire_cloud.engine.probe import ExactnessReport, check_architecture, exactness_self_test
from draftwire_cloud.engine.target import Target
from draftwire_cloud.engine.weights import half_available
from tiny.architectures import Arch, random_config

LoadTarget = Callable[..., Target]
FolderOf = Callable[..., Path]


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("mamba2", "recurrent state"),
        ("recurrent_gemma", "recurrent state"),
        ("qwen3_next", "recurrent state"),
        ("deepseek_v3", "latent"),
    ],
)
def test_models_that_cannot_be_cut_back_are_refused_at_load(
    arch: Arch, reason: str, folder_of: FolderOf
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        Target.load(folder_of(arch), device="cpu")


def test_a_model_whose_attention_cannot_be_replaced_is_refused(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "_can_set_attn_implementation", classmethod(lambda _: False))
    with pytest.raises(UnsupportedModelError, match="attention cannot be replaced"):
        Target.load(folder_of("qwen2"), device="cpu")


def test_a_sliding_window_that_never_reaches_attention_is_refused(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwire_cloud.engine import target

    monkeypatch.setattr(target, "uses_sliding_window", lambda _: True)
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        Target.load(folder_of("llama"), device="cpu")


@pytest.mark.parametrize("form", ["plain", "blocked", "half", "bf16"])
@pytest.mark.parametrize("arch", ["qwen2", "mistral", "gemma2", "gemma3_text", "gpt_oss", "mixtral"])
def test_sound_targets_pass(arch: Arch, form: str, load_target: LoadTarget, rng: np.random.Generator) -> None:
    check_architecture(load_target(arch, form), rng)


def test_keys_of_a_rejected_draft_that_stay_are_noticed(
    load_target: LoadTarget, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target()

    def write_once(arena: Arena, layer: int, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        for i, row in enumerate(rows.tolist()):
            keys, values = arena.view(layer, row, 1)
            if not keys.any():
                keys[0, :, 0], values[0, :, 0] = k[:, i], v[:, i]

    monkeypatch.setattr(Arena, "write", write_once)
    with pytest.raises(UnsupportedModelError, match="standard deviations"):
        check_architecture(target, rng)


@pytest.mark.parametrize("form", ["plain", "bf16"])
def test_a_mask_that_shows_the_future_is_noticed(
    form: str, load_target: LoadTarget, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sound = load_target("qwen2", form), packing.causal_mask

    def one_too_many(*args: Any) -> torch.Tensor:
        mask = sound(*args)
        return mask | mask.roll(1, dims=3)

    monkeypatch.setattr(packing, "causal_mask", one_too_many)
    with pytest.raises(UnsupportedModelError, match="standard deviations"):
        check_architecture(target, rng)


@pytest.mark.parametrize("arch", ["mistral", "gemma2", "gemma3_text", "gpt_oss"])
def test_a_forgotten_window_is_noticed(
    arch: Arch, load_target: LoadTarget, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sound = load_target(arch), packing.causal_mask
    monkeypatch.setattr(packing, "causal_mask", lambda placed, _window, device: sound(placed, None, device))
    with pytest.raises(UnsupportedModelError, match="standard deviations"):
        check_architecture(target, rng)


def test_a_nan_is_an_error(
    load_target: LoadTarget, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "packed_logits", lambda *_: [torch.full((28, 4), torch.nan)] * 2)
    monkeypatch.setattr(probe, "reference_logits", lambda *_: torch.randn(28, 4))
    with pytest.raises(UnsupportedModelError, match="nan"):
        check_architecture(load_target(), rng)


@pytest.mark.parametrize("form", ["plain", "blocked", "half", "bf16"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "mixtral"])
def test_fixed_shapes_are_exact(
    arch: Arch, form: str, load_target: LoadTarget, rng: np.random.Generator
) -> None:
    report = exactness_self_test(load_target(arch, form), 60, rng)
    assert report.is_exact, report.summary()
    assert report.summary().startswith("exact")
    assert (report.positions, report.flipped_argmax, report.max_abs_diff) == (60, 0, 0.0)
    assert report.min_gap >= 0


@pytest.mark.skipif(not half_available(), reason="without it the kernels may happen to agree")
def test_the_self_test_says_so_when_bits_differ(load_target: LoadTarget, rng: np.random.Generator) -> None:
    report = exactness_self_test(load_target("qwen2", "half", fixed_shapes=False), 60, rng)
    assert not report.is_exact
    assert 0 < report.max_abs_diff < 1e-3
    assert report.summary().startswith("NOT exact")


def test_the_self_test_catches_a_broken_engine(
    load_target: LoadTarget, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sound = load_target(), packing.causal_mask

    def blind_in_blocks(
        members: Sequence[packing.Placed], window: int | None, device: torch.device
    ) -> torch.Tensor:
        return sound(members, window if members[0].n_new == 1 else 3, device)

    monkeypatch.setattr(packing, "causal_mask", blind_in_blocks)
    report = exactness_self_test(target, 40, rng)
    assert report.differing_positions > 20
    assert report.flipped_argmax > 0


def test_the_self_test_fits_a_short_context(load_target: LoadTarget, rng: np.random.Generator) -> None:
    target = load_target()
    target.facts.__dict__["context_length"] = 40
    report = exactness_self_test(target, 100, rng)
    assert report.is_exact
    assert report.positions < 40


def test_everything_opened_is_released(load_target: LoadTarget, rng: np.random.Generator) -> None:
    target = load_target()
    check_architecture(target, rng)
    exactness_self_test(target, 10, rng)
    assert target.slots.n_open == 0


def test_the_summary_names_what_a_reader_needs() -> None:
    text = ExactnessReport(20, 3, 1, 1.5e-4, 2e-5).summary()
    assert text == (
        "NOT exact: 3 of 20 positions differ, by up to 1.50e-04 (smallest gap between two best tokens "
        "2.00e-05); 1 choose another token"
    )


def test_a_context_ends_where_rotary_frequencies_change() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 128}
    config = random_config("llama")
    assert context_length(config) == 512
    config.rope_parameters = rope
    assert context_length(config) == 128
