"""What the model's layers take for their cache."""

from typing import Any

import torch

from draftwire_cloud.engine.packing import Plan


class PackedCache:
    """Writes each session's new keys and values into its slot.

    Duck-typed after the two methods of ``transformers.Cache`` that attention layers and mask building
    call (transformers 5.24, ``cache_utils.py``). Anything else a model asks of its cache fails loudly.

    Args:
        plan: the forward pass this cache is for; one cache serves one pass.
    """

    is_compileable = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def update(
        self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values and hand them back as they are.

        Args:
            k: ``[1, Hkv, N, D]``, rows as packed.
            v: ``[1, Hkv, N, D]``.
            layer_idx: whose they are.
        """
        rows = self._plan.kv_rows
        n = len(rows)
        if n:
            self._plan.arena.write(layer_idx, rows, k[0, :, :n], v[0, :, :n])
        self._plan.remember_owner(k, layer_idx)
        return k, v

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """0: positions are given with every call, and no session's length fits all."""
        return 0


class LayoutCache(PackedCache):
    """A cache that stores nothing and notes the shapes that pass by."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, k: torch.Tensor, v: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the shapes of layer ``layer_idx``; the plan must be empty of spans."""
        self.seen[layer_idx] = (k, v)
        return super().update(k, v, layer_idx, *args, **kwargs)
