"""A model split over several ranks, by transformers' tensor-parallel plan of its architecture."""

from pathlib import Path
from typing import Any

from torch import distributed
from transformers import AutoConfig
from transformers.distributed import DistributedConfig

from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_protocol.errors import UserInputError

#: Styles that cut the heads themselves; the others gather them again before attention.
_CUTS_HEADS = "colwise"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")


def require_shardable(folder: Path, n_ranks: int) -> None:
    """Check that a model can be split over so many ranks, before anything is loaded.

    Raises:
        UnsupportedModelError: transformers has no plan for this architecture.
        UserInputError: its heads cannot be divided by ``n_ranks``.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config(decoder=True)
    plan = getattr(config, "base_model_tp_plan", None) or {}
    if not any(name.startswith("layers.") for name in plan):
        raise UnsupportedModelError(
            f"{config.model_type} cannot be split over {n_ranks} ranks: transformers has no "
            "tensor-parallel plan for its layers. Serve it with --tp 1"
        )
    cuts = [name for name, style in plan.items() if style == _CUTS_HEADS]
    if any(name.rsplit(".", 1)[-1] in _PROJECTIONS for name in cuts):
        _require_divisible(config, n_ranks)


def _require_divisible(config: Any, n_ranks: int) -> None:
    """Every rank keeps whole heads, and as many as its neighbours."""
    n_heads = config.num_attention_heads
    n_kv_heads = getattr(config, "num_key_value_heads", None) or n_heads
    if n_heads % n_ranks or n_kv_heads % n_ranks:
        fitting = [str(n) for n in range(1, n_kv_heads + 1) if n_heads % n == 0 and n_kv_heads % n == 0]
        raise UserInputError(
            "--tp",
            f"{n_heads} attention heads and {n_kv_heads} key/value heads cannot be divided by {n_ranks}",
            f"Choose one of {', '.join(fitting)}",
        )


def shard_arguments(n_ranks: int) -> dict[str, Any]:
    """What ``from_pretrained`` needs to load only this rank's part; nothing for a single rank."""
    return {} if n_ranks == 1 else {"distributed_config": DistributedConfig(tp_size=n_ranks, tp_plan="auto")}


def num_ranks(model: Any) -> int:
    """Over how many ranks a model was split when it was loaded."""
    return getattr(model, "tp_size", None) or 1


def agreed(policy: ShapePolicy) -> ShapePolicy:
    """Rank 0's padding for every rank: they add up products of one shape, whatever each CPU would choose."""
    words = [policy]
    distributed.broadcast_object_list(words, src=0)
    return words[0]
