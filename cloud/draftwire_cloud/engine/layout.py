"""The shape of one token's keys and values in every layer of a model."""

from dataclasses import dataclass
from typing import Self

import torch

from draftwire_cloud.engine.errors import UnsupportedModelError


@dataclass(frozen=True)
class LayerShape:
    """Key/value heads and head width of one layer; layers of one model may differ."""

    n_heads: int
    head_dim: int


@dataclass(frozen=True)
class KvLayout:
    """What a slot has to hold for one token.

    Attributes:
        layers: layer index -> shape, only for layers that keep keys and values of their own.
        dtype: element type of keys and values.
        device: where they live.
    """

    layers: dict[int, LayerShape]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def observed(cls, seen: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Self:
        """The layout of a model, from the keys and values of one forward pass.

        Args:
            seen: layer index -> keys ``[1, Hkv, N, D]`` and values of the same shape.

        Raises:
            UnsupportedModelError: when nothing was cached or keys and values differ in shape.
        """
        if not seen:
            raise UnsupportedModelError("the model never writes keys and values to its cache")
        layers = {}
        for index, (k, v) in sorted(seen.items()):
            if k.shape != v.shape or k.dtype != v.dtype:
                raise UnsupportedModelError(
                    f"layer {index}: keys {tuple(k.shape)} and values {tuple(v.shape)} differ in shape; "
                    "latent caches (MLA) are not supported"
                )
            layers[index] = LayerShape(n_heads=k.shape[1], head_dim=k.shape[3])
        first = next(iter(seen.values()))[0]
        return cls(layers=layers, dtype=first.dtype, device=first.device)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values for one token, over all layers."""
        return sum(2 * s.n_heads * s.head_dim for s in self.layers.values()) * self.dtype.itemsize
