"""Random weights with the statistics of a real model, and noisy copies of them.

Tensors carry their Hugging Face names and are stored [out, in], float32. Every tensor has its own random
stream and is drawn row by row, so padding the vocabulary leaves all other numbers as they were.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tiny.config import TinyConfig

Array = NDArray[np.float32]
Weights = dict[str, Array]

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

_READERS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight", LM_HEAD)
"""Suffixes of the matrices [out, n_embd] that read the residual stream."""
_WRITERS = ("o_proj.weight", "down_proj.weight")
"""Suffixes of the matrices [n_embd, in] that add to it."""

_NORM_SPREAD = 0.1
_COMMON = 2.0
"""Value that every embedding carries in channel 0 when `eos_lift` is set."""


def build_weights(config: TinyConfig, n_rows: int) -> Weights:
    """Draw the model of `config` for a vocabulary of `n_rows` ids."""
    shapes = tensor_shapes(config, n_rows)
    weights = {name: _draw(name, shape, config) for name, shape in shapes.items()}
    if config.eos_lift is not None:
        _lift_eos(weights, config.eos_ids, config.eos_lift)
    return weights


def tensor_shapes(config: TinyConfig, n_rows: int) -> dict[str, tuple[int, ...]]:
    """Name and shape [out, in] (norms: [n_embd]) of every tensor, in file order."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (n_rows, config.n_embd)}
    for layer in range(config.n_layer):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes | {FINAL_NORM: (config.n_embd,), LM_HEAD: (n_rows, config.n_embd)}


def _layer_shapes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors of one layer."""
    n_embd, n_ff = config.n_embd, config.n_ff
    n_kv = config.n_head_kv * config.head_dim
    return {
        "input_layernorm.weight": (n_embd,),
        "self_attn.q_proj.weight": (n_embd, n_embd),
        "self_attn.k_proj.weight": (n_kv, n_embd),
        "self_attn.v_proj.weight": (n_kv, n_embd),
        "self_attn.o_proj.weight": (n_embd, n_embd),
        "post_attention_layernorm.weight": (n_embd,),
        "mlp.gate_proj.weight": (n_ff, n_embd),
        "mlp.up_proj.weight": (n_ff, n_embd),
        "mlp.down_proj.weight": (n_embd, n_ff),
    }


def _draw(name: str, shape: tuple[int, ...], config: TinyConfig) -> Array:
    """Draw one tensor: embeddings N(0, 1), linears N(0, 1/in), lm_head N(0, sigma^2/in), norms near 1."""
    normal = _stream(config.seed, name).standard_normal(shape, dtype=np.float32)
    if is_norm(name):
        return np.float32(1.0) + np.float32(_NORM_SPREAD) * normal
    if name == EMBEDDING:
        return normal
    scale = config.sigma if name == LM_HEAD else 1.0
    return normal * np.float32(scale / np.sqrt(shape[-1]))


def _lift_eos(weights: Weights, eos_ids: tuple[int, ...], lift: float) -> None:
    """Turn channel 0 into a constant that only the eos rows of lm_head read, so they gain about `lift` nats.

    No other matrix reads it, because a constant in Q and K drowns the context and greedy text then falls into
    short loops. None writes it, because its sign must never change.
    """
    weights[EMBEDDING][:, 0] = _COMMON
    for name in weights:
        if name.endswith(_READERS):
            weights[name][:, 0] = 0.0
        elif name.endswith(_WRITERS):
            weights[name][0, :] = 0.0
    weights[LM_HEAD][list(eos_ids), 0] = lift / _COMMON


def add_noise(weights: Weights, eps: float, seed: int) -> Weights:
    """Make a drafter: every tensor but the norms gains noise of `eps` times its own standard deviation."""
    return {
        name: tensor if is_norm(name) else _noisy(name, tensor, eps, seed) for name, tensor in weights.items()
    }


def _noisy(name: str, tensor: Array, eps: float, seed: int) -> Array:
    """Return one noisy tensor, same shape."""
    noise = _stream(seed, "noise:" + name).standard_normal(tensor.shape, dtype=np.float32)
    return tensor + np.float32(eps * tensor.std()) * noise


def is_norm(name: str) -> bool:
    """Whether a tensor is the gain of a normalisation."""
    return "norm" in name


def _stream(seed: int, name: str) -> np.random.Generator:
    """Return the random stream of one tensor."""
    return np.random.default_rng([seed, crc32(name.encode())])
