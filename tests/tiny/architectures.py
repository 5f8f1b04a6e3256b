"""Random tiny Hugging Face targets of other architectures, with the same tokeniser, for tests of the engine.

The usual initialisation is near-uniform: every drafter looks good on it and every wrong cache goes unnoticed.
Here every tensor gets the scale that makes its output as large as its input, and lm_head the scale that gives
logits a standard deviation of `sigma`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tiny import vocabulary
from tiny.hf_folder import special_ids, write_tokenizer

Arch = Literal[
    "llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2",
    "qwen2_moe", "qwen3_moe", "gpt2", "gpt_neox", "gpt_oss",
    "deepseek_v3", "mamba2", "recurrent_gemma", "qwen3_next",
]  # fmt: skip
"""Model types that can be made. The last line holds the ones whose cache cannot simply be cut back."""

ARCHITECTURES: tuple[Arch, ...] = get_args(Arch)

_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _FF = 64, 4, 2, 16, 128
_CONTEXT, _WINDOW = 512, 24

_EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": _HEADS,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"],
}
_SLIDING_TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": _WINDOW}

_EXTRAS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "mistral": {"sliding_window": _WINDOW},
        "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        "gemma2": {**_SLIDING_TYPES, "query_pre_attn_scalar": _HEAD_DIM},
        "gemma3_text": {**_SLIDING_TYPES, "query_pre_attn_scalar": _HEAD_DIM},
        "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 64},
        "qwen3_moe": _EXPERTS,
        "gpt_oss": {**_SLIDING_TYPES, "num_local_experts": 4, "num_experts_per_tok": 2},
        "deepseek_v3": _LATENT,
        "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
        "recurrent_gemma": {
            "lru_width": _HIDDEN,
            "attention_window_size": _WINDOW,
            "block_types": ["recurrent", "attention"],
        },
        "qwen3_next": {**_EXPERTS, **_LINEAR},
    }
)
"""What an architecture needs beyond the common sizes. Windows are short, so that tests run past them."""


def make_random_target(
    folder: Path,
    arch: Arch,
    *,
    seed: int = 0,
    sigma: float = 4.0,
    n_layer: int = 2,
    vocab_pad: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Path:
    """Write a random model of `arch` and the tiny tokeniser into `folder`; `overrides` go to its config."""
    config = random_config(arch, n_layer=n_layer, vocab_pad=vocab_pad, **overrides)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    scale_randomly(model, seed=seed, sigma=sigma)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(dtype=dtype).save_pretrained(folder)
    write_tokenizer(folder, _CONTEXT)
    return folder


def random_config(arch: Arch, *, n_layer: int = 2, vocab_pad: int = 0, **overrides: Any) -> PretrainedConfig:
    """Return the config of a tiny model of `arch`; keys it does not know become plain attributes."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary.N_TOKENS + vocab_pad,
        "hidden_size": _HIDDEN,
        "intermediate_size": _FF,
        "num_hidden_layers": n_layer,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": _CONTEXT,
        "tie_word_embeddings": False,
    }
    settings = sizes | special_ids() | _EXTRAS.get(arch, {}) | overrides
    config: PretrainedConfig = AutoConfig.for_model(arch, **settings)
    return config


@torch.no_grad()
def scale_randomly(model: PreTrainedModel, *, seed: int, sigma: float) -> None:
    """Redraw every matrix at a scale that keeps activations near 1 and the logits' deviation at `sigma`.

    Vectors (norms, decays) keep their initial value, except that biases get a little noise: a bias of zero
    would hide a bias that was forgotten.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if tensor.ndim >= 2:
            tensor.copy_(_scale_of(model, tensor, sigma) * torch.randn(tensor.shape, generator=generator))
        elif name.endswith("bias"):
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))


def _scale_of(model: PreTrainedModel, tensor: torch.Tensor, sigma: float) -> float:
    """Return the standard deviation for one matrix [..., out, in] (some store [..., in, out])."""
    hidden: int = model.config.hidden_size
    if tensor is model.get_output_embeddings().weight:
        return sigma / math.sqrt(hidden)
    if tensor is model.get_input_embeddings().weight and _multiplies_embeddings(model):
        return 1.0 / math.sqrt(hidden)
    if any(tensor is table for table in _tables(model)):
        return 1.0
    return 1.0 / math.sqrt(tensor.shape[-2 if _stores_input_first(model, tensor) else -1])


def _tables(model: PreTrainedModel) -> list[torch.Tensor]:
    """List the embedding tables [n, hidden], of tokens and of positions."""
    return [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]


def _multiplies_embeddings(model: PreTrainedModel) -> bool:
    """Whether the model multiplies its embeddings by sqrt(hidden_size), as the Gemma family does."""
    return "gemma" in model.config.model_type


def _stores_input_first(model: PreTrainedModel, tensor: torch.Tensor) -> bool:
    """Whether a matrix is stored [..., in, out]."""
    return {"gpt2": 2, "gpt_oss": 3}.get(model.config.model_type) == tensor.ndim
