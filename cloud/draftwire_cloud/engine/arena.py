"""The memory of all sessions' keys and values: one buffer a layer, made once."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch

from draftwire_cloud.engine.layout import KvLayout, LayerShape

BLOCK_TOKENS = 512
"""Tokens of a block. A multiple of every ``kv_multiple`` in use, so that the padded view of a session
always lies inside its own blocks."""


class Move(NamedTuple):
    """One of `Arena`'s changes to whole runs of rows: the name of its method, and the arguments."""

    name: Literal["copy", "save", "restore", "clear"]
    arguments: tuple[int, ...]


class Arena:
    """Keys and values by row; a session's rows are neighbours, so nothing is gathered to be read.

    On the CPU the buffers come from numpy, whose zero pages are only committed when first written.

    Args:
        layout: what one token needs.
        n_blocks: how many blocks of `BLOCK_TOKENS` rows.

    Attributes:
        journal: where moves are noted, for whoever keeps rows alike elsewhere; None where nobody does.
    """

    def __init__(self, layout: KvLayout, n_blocks: int) -> None:
        rows = n_blocks * BLOCK_TOKENS
        self._kv = {index: _zeros(shape, rows, layout) for index, shape in layout.layers.items()}
        self._written_to = 0
        self._saved: dict[int, torch.Tensor] = {}
        self.journal: list[Move] | None = None

    def write(self, layer: int, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put keys and values of new tokens into their rows.

        Args:
            layer: layer index.
            rows: int64 ``[n]``.
            k: ``[Hkv, n, D]``.
            v: ``[Hkv, n, D]``.
        """
        kv = self._kv[layer]
        kv[0].index_copy_(1, rows, k)
        kv[1].index_copy_(1, rows, v)

    def view(
        self, layer: int, first: int, n: int, *, count: int = 1, stride: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``count`` sessions that lie ``stride`` rows apart; nothing is copied.

        Args:
            layer: layer index.
            first: row of the first session's first token.
            n: rows of each session.
            count: sessions.
            stride: rows from one session's first to the next one's.

        Returns:
            Each ``[count, Hkv, n, D]``.
        """
        kv = self._kv[layer]
        _, n_heads, _, dim = kv.shape
        _, heads, row, _ = kv.stride()
        size, strides = (count, n_heads, n, dim), (stride * row, heads, row, 1)
        offset = first * row
        return kv.as_strided(size, strides, offset), kv.as_strided(size, strides, offset + kv.stride(0))

    def copy(self, source: int, target: int, n: int) -> None:
        """Copy ``n`` rows; the two places may overlap when the rows are moved down."""
        self._note("copy", source, target, n)
        step = abs(target - source)
        if not step:
            return
        for done in range(0, n, step):
            part = min(step, n - done)
            for kv in self._kv.values():
                kv[:, :, target + done :][:, :, :part] = kv[:, :, source + done :][:, :, :part]

    def save(self, first: int, n: int) -> None:
        """Set a copy of ``n`` rows of every layer aside, in place of what was saved before."""
        self._note("save", first, n)
        self._saved = {index: kv[:, :, first : first + n].clone() for index, kv in self._kv.items()}

    def restore(self, first: int) -> None:
        """Put what `save` set aside at ``first``, and forget it."""
        self._note("restore", first)
        for index, rows in self._saved.items():
            self._kv[index][:, :, first : first + rows.shape[2]] = rows
        self._saved = {}

    def clear(self, first: int, n: int) -> None:
        """Make rows zero that may have been used.

        Masked rows are multiplied by 0, and 0 times what another session may have left, a NaN, is NaN.
        """
        self._note("clear", first, n)
        used = min(first + n, self._written_to)
        if used > first:
            for kv in self._kv.values():
                kv[:, :, first:used] = 0
        self._written_to = max(self._written_to, first + n)

    def repeat(self, move: Move) -> None:
        """Do what another arena has noted."""
        getattr(self, move.name)(*move.arguments)

    def _note(self, name: Literal["copy", "save", "restore", "clear"], *arguments: int) -> None:
        if self.journal is not None:
            self.journal.append(Move(name, arguments))


def _zeros(shape: LayerShape, rows: int, layout: KvLayout) -> torch.Tensor:
    """``[2, Hkv, rows, D]``, keys first."""
    dims = (2, shape.n_heads, rows, shape.head_dim)
    if layout.device.type != "cpu":
        return torch.zeros(dims, dtype=layout.dtype, device=layout.device)
    raw = np.zeros(int(np.prod(dims)) * layout.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(layout.dtype).view(dims)
