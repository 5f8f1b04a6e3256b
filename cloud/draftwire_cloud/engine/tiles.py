"""16-bit products in tiles: rows of a tile have the same bits whatever their number.

Where the hardware multiplies 16-bit numbers (AVX-512, AMX), the kernel changes its order of adding with
the number of rows, at limits that differ from one shape of weight to the next: on a Sapphire Rapids core
1536 -> 8960 agrees with itself for 1 to 36 rows and for 37 and more, but not across. So each layer is cut
into tiles within which all row counts agree, found when the model is loaded. Verifying mostly fits into
one tile; reading a long prompt takes several calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

#: Most rows of a tile, and fewest, the best first. Often one row alone is what differs.
MOST_ROWS = (64, 32, 16, 8, 4, 2, 1)
LEAST_ROWS = (1, 2, 4, 8)
#: Counts that show whether no tile is needed.
_MANY_ROWS = (96, 128, 192, 256, 384, 512)
#: Of a large weight not every count is tried.
_FEW_COUNTS = (*range(1, 10), 16, 17)
_LARGE_WEIGHT = 1 << 26
#: Columns of a telling weight that are drawn; the others repeat them.
_DRAWN = 4096
#: Sums to compare of each count at least.
_SUMS = 4096


class Tile(NamedTuple):
    """Row counts of a product that give a row the same bits: all from ``least`` to ``most``."""

    least: int
    most: int


class TiledLinear(nn.Module):
    """``x @ W.T + b``, a tile of rows at a time.

    Args:
        linear: in the type it computes in.
        tile: its row counts; fewer rows than the least are filled up.
    """

    def __init__(self, linear: nn.Linear, tile: Tile) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self.tile = tile
        # Plain attributes: an embedding may share the weight, and nobody trains it.
        self._weight = linear.weight.detach()
        bias: torch.Tensor | None = linear.bias
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., n_in]`` to ``[..., n_out]``."""
        rows = x.reshape(-1, self.in_features)
        parts = [self._multiply(part) for part in torch.split(rows, self.tile.most)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        missing = self.tile.least - len(rows)
        if missing > 0:
            rows = functional.pad(rows, (0, 0, 0, missing))
        product = functional.linear(rows, self._weight, self._bias)
        return product[:-missing] if missing > 0 else product


def agreeing_tile(linear: nn.Linear, generator: torch.Generator) -> Tile | None:
    """The largest tile in which all row counts have the same bits; None where none is needed.

    Args:
        linear: a layer; the answer holds for all of its shape.
        generator: of the numbers to try.
    """
    n_out, n_in = linear.weight.shape
    large = n_out * n_in > _LARGE_WEIGHT
    counts = list(_FEW_COUNTS) if large else list(range(1, MOST_ROWS[0] + 1))
    # Common numbers tell where a bias is added, telling ones in which order the products are.
    common = torch.randn(_MANY_ROWS[-1], n_in, generator=generator).to(linear.weight.dtype)
    tries = [(linear, common), telling(linear, generator)]
    with torch.inference_mode():
        if not large and all(_agree(*one, [*counts, *_MANY_ROWS]) for one in tries):
            return None
        for most in MOST_ROWS:
            for least in (one for one in LEAST_ROWS if one <= most):
                tried = [n for n in counts if least <= n <= most]
                if all(_agree(layer, rows[:most], tried) for layer, rows in tries):
                    return Tile(least, most)
    return Tile(1, 1)


def telling(linear: nn.Linear, generator: torch.Generator) -> tuple[nn.Linear, torch.Tensor]:
    """A layer of the same shape and rows for it whose products cancel, so that only rounding is left.

    Rounded to 16 bits, sums of common numbers look alike in nearly every order; these show any order.

    Returns:
        The layer and ``[512, n_in]``.
    """
    n_out, n_in = linear.weight.shape
    twin = nn.Linear(n_in, n_out, bias=linear.bias is not None, dtype=linear.weight.dtype)
    half = (n_in - 1) // 2
    with torch.no_grad():
        weight = _spread(min(n_out, _DRAWN), half, generator).to(linear.weight.dtype)
        weight = weight.repeat(-(-n_out // len(weight)), 1)[:n_out]
        twin.weight.zero_()
        twin.weight[:, :half], twin.weight[:, half : 2 * half] = weight, -weight
        if twin.bias is not None:
            # The bias cancels too, against the last column: some kernels add it first, some last.
            twin.bias.copy_(_spread(1, n_out, generator)[0])
            twin.weight[:, -1] = -twin.bias
    rows = torch.zeros(_MANY_ROWS[-1], n_in)
    rows[:, -1] = 1.0
    rows[:, :half] = rows[:, half : 2 * half] = _spread(_MANY_ROWS[-1], half, generator)
    return twin, rows.to(linear.weight.dtype)


def _spread(n: int, m: int, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers of very different sizes, ``[n, m]``."""
    sizes = torch.randint(-8, 9, (n, m), generator=generator)
    return torch.ldexp(torch.randn(n, m, generator=generator), sizes)


def _agree(linear: nn.Linear, rows: torch.Tensor, counts: list[int]) -> bool:
    """Whether rows have the same bits n at a time and all at once, for every count up to all of them."""
    whole = linear(rows)
    for n in counts:
        # A row of a small layer has few sums to tell by, so more rows are tried.
        most = max(n, -(-_SUMS // whole.shape[1]))
        for start in range(0, min(most, len(rows)) - n + 1, n):
            if not torch.equal(linear(rows[start : start + n].clone()), whole[start : start + n]):
                return False
    return True


def tile_layers(model: nn.Module) -> dict[str, int]:
    """Cut the linear layers of a CPU model into tiles where that is needed, in place.

    Returns:
        How many were cut, under ``tiled``, and how many not, under ``plain``.
    """
    forms = {"tiled": 0, "plain": 0}
    tiles: dict[tuple[int, int, bool], Tile | None] = {}
    generator = torch.Generator().manual_seed(0)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear:
                continue
            n_out, n_in = child.weight.shape
            shape = (n_out, n_in, child.bias is not None)
            if shape not in tiles:
                tiles[shape] = agreeing_tile(child, generator)
            if (tile := tiles[shape]) is not None:
                setattr(parent, name, TiledLinear(child, tile))
            forms["plain" if tile is None else "tiled"] += 1
    return forms
