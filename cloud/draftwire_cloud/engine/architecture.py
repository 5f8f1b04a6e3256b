"""Which model classes the packed path can serve at all."""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from draftwire_cloud.engine.errors import UnsupportedModelError

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def require_supported(model: torch.nn.Module) -> None:
    """Check what a model says about itself, before anything is computed.

    Raises:
        UnsupportedModelError: with the reason.
    """
    reason = refusal(model, model.config)
    if reason is not None:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be served: {reason}")


def refusal(model: Any, config: Any) -> str | None:
    """Why the packed path cannot serve a model, or ``None``."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if getattr(model, "_is_stateful", False) or is_recurrent(text):
        return "it keeps a recurrent state, which cannot be cut back after a wrong draft"
    if getattr(text, "kv_lora_rank", None) is not None:
        return "it caches latent vectors (MLA) and expands them after the cache"
    if not model._can_set_attn_implementation():  # noqa: SLF001 - transformers has no public question
        return "its attention cannot be replaced"
    other = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES)
    return f"it has layers of type {', '.join(other)}" if other else None


def is_recurrent(config: Any) -> bool:
    """Whether transformers itself would give this model linear-attention state."""
    return any(
        isinstance(layer, LinearAttentionCacheLayerMixin) for layer in DynamicCache(config=config).layers
    )


def uses_sliding_window(config: Any) -> bool:
    """Whether some layer of the model sees less than the whole context."""
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return "sliding_attention" in kinds
    return getattr(text, "sliding_window", None) is not None
