"""Every random architecture loads, is far from uniform and depends on all it has read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny import vocabulary
from tiny.architectures import ARCHITECTURES, Arch, make_random_target, random_config


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return logits [n, rows] for ids [1, n]."""
    with torch.no_grad():
        rows: torch.Tensor = model(input_ids=ids).logits[0]
    return rows


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_random_target(tmp_path: Path, arch: Arch) -> None:
    folder = make_random_target(tmp_path, arch, vocab_pad=3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(0, vocabulary.N_ORDINARY, (1, 60), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 40] = (changed[0, 40] + 1) % vocabulary.N_ORDINARY
    before, after = logits_of(model, ids), logits_of(model, changed)

    p = before.softmax(dim=-1)
    assert before.shape == (60, vocabulary.N_TOKENS + 3)
    assert 1.2 < -(p * (p + 1e-30).log()).sum(dim=-1).mean() < 2.4
    assert (before - after)[:40].abs().max() < 1e-4, "causal"
    assert (p - after.softmax(dim=-1))[41:].abs().sum(dim=-1).mean() > 0.02, (
        "a changed token is noticed later"
    )


@pytest.mark.parametrize("arch", ["llama", "mixtral"])
def test_its_tokeniser_and_end_ids(tmp_path: Path, arch: Arch) -> None:
    folder = make_random_target(tmp_path, arch)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.generation_config.eos_token_id == list(vocabulary.EOS_IDS)
    assert len(tokenizer) == vocabulary.N_TOKENS
    assert tokenizer.encode(" the<|im_end|>") == [259, vocabulary.IM_END_ID]


def test_seed_type_and_overrides(tmp_path: Path) -> None:
    def head(name: str, **options: Any) -> torch.Tensor:
        folder = make_random_target(tmp_path / name, "llama", **options)
        weight: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder).get_output_embeddings().weight
        return weight

    assert torch.equal(head("a", seed=1), head("b", seed=1))
    assert not torch.equal(head("a", seed=1), head("c", seed=2))
    assert head("d", dtype=torch.bfloat16).dtype == torch.bfloat16
    assert random_config("mistral", n_layer=3, sliding_window=8).sliding_window == 8


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown architecture 'nope'"):
        random_config("nope")  # type: ignore[arg-type]
