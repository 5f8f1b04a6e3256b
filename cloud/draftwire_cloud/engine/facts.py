"""What the rest of the service needs to know about the target model."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelFacts:
    """Fixed properties of a loaded target.

    Attributes:
        architecture: class name, e.g. ``Qwen2ForCausalLM``.
        n_vocab: width of a row of logits; may exceed the number of real tokens.
        context_length: most tokens the model was made for, prompt and output together.
        eos_ids: every id that ends a generation, ascending.
        dtype: arithmetic type, ``float32`` or ``bfloat16``.
        weights: how linear weights are kept, e.g. ``half x 197``, ``plain`` or ``plain, split over 2 ranks``.
        kv_bytes_per_token: bytes of keys and values a token takes in a slot, on one rank.
        device: where the model runs.
    """

    architecture: str
    n_vocab: int
    context_length: int
    eos_ids: tuple[int, ...]
    dtype: str
    weights: str
    kv_bytes_per_token: int
    device: str


def eos_ids(model: Any) -> tuple[int, ...]:
    """Every end-of-generation id: all of the generation config's, else the model config's."""
    for config in (model.generation_config, model.config.get_text_config(decoder=True)):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return tuple(sorted({found} if isinstance(found, int) else set(found)))
    return ()


def heads(config: Any) -> tuple[int, int, int]:
    """Query heads, key heads and numbers in a head; usual ones where a configuration does not say."""
    text = config.get_text_config(decoder=True)
    n_heads = getattr(text, "num_attention_heads", None)
    if not isinstance(n_heads, int) or n_heads < 1:
        return (4, 2, 64)
    n_kv = getattr(text, "num_key_value_heads", None) or n_heads
    dim = getattr(text, "head_dim", None) or text.hidden_size // n_heads
    return (n_heads, n_kv, dim) if n_heads % n_kv == 0 else (4, 2, 64)


def context_length(config: Any) -> int:
    """The context the model can be served for, in tokens.

    Raises:
        ValueError: when the config does not say.
    """
    text = config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
        found = getattr(text, name, None)
        if isinstance(found, int):
            return min(found, rope_limit(text, found))
    raise ValueError(f"{type(text).__name__} does not say how long its context is")


def rope_limit(config: Any, otherwise: int) -> int:
    """The position up to which rotary frequencies stay the same.

    ``longrope`` (Phi-3) changes to other frequencies for the whole forward pass as soon as one position
    in it lies beyond the original context. In a packed row one long session would then change all
    others, and keys already held would not fit any more, so sessions end there.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [
        part.get("original_max_position_embeddings") or otherwise
        for part in parts
        if part.get("rope_type") == "longrope"
    ]
    return min(limits, default=otherwise)
