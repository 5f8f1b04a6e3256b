"""16-bit products in tiles: rows of a tile have the same bits whatever their number.

Where the hardware multiplies 16-bit numbers (AVX-512, AMX), the kernel changes its order of adding with
the number of rows, at limits that differ from one shape of weight to the next: on a Sapphire Rapids core
1536 -> 8960 agrees with itself for 1 to 32 rows and for 37 and more, but not across. So each layer is cut
into tiles within which all row counts agree, found when the model is loaded.

The kernel also depends on the order that the weight is kept in. torch's own product reorders the weight at
every call; in oneDNN's order for one row most shapes agree with themselves from 1 row to 128, and what is
left of them does for 2 to 32 in its order for 32. Milliseconds for 1536 -> 8960 there, two threads, weights
not in the cache, 6 / 32 / 96 rows: torch's own 1.1 / 1.5 / 2.5, for one row 0.64 / 0.95 / 2.0, for 32 rows
0.65 / 0.82 / 1.4; in tiles that agree, 96 rows are 4.5, 2.0 and 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine import onednn

#: Most rows of a tile, and fewest, the best first. Often one row alone is what differs.
MOST_ROWS = (128, 64, 32, 16, 8, 4, 2, 1)
LEAST_ROWS = (1, 2, 4, 8)
#: Rows to reorder a weight for, the best first.
_EXPECTED_ROWS = (1, 32)
#: A tile of this many rows is not worth looking for a larger one.
_ENOUGH_ROWS = 64
#: Counts that show whether no tile is needed.
_MANY_ROWS = (96, 128, 192, 256, 384, 512)
#: Of a large weight not every count is tried.
_FEW_COUNTS = (*range(1, 10), 16, 17)
_ALL_COUNTS = tuple(range(1, MOST_ROWS[0] + 1))
_LARGE_WEIGHT = 1 << 26
#: Columns of a telling weight that are drawn; the others repeat them.
_DRAWN = 4096
#: Sums to compare of each count at least.
_SUMS = 4096


class Tile(NamedTuple):
    """Row counts of a product that give a row the same bits: all from ``least`` to ``most``."""

    least: int
    most: int


Product = Callable[[torch.Tensor], torch.Tensor]
"""Maps rows ``[n, n_in]`` to ``[n, n_out]``."""


class Form(NamedTuple):
    """How a layer is kept: its tile, and the rows its weight is reordered for (None: torch's order)."""

    tile: Tile
    expected_rows: int | None = None


class TiledLinear(nn.Module):
    """``x @ W.T + b``, a tile of rows at a time.

    Args:
        linear: in the type it computes in.
        form: its row counts, and the order of its weight; fewer rows than the tile's least are filled up.
    """

    def __init__(self, linear: nn.Linear, form: Form) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self.form = form
        self._product = product(linear, form.expected_rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., n_in]`` to ``[..., n_out]``."""
        rows = x.reshape(-1, self.in_features)
        parts = [self._multiply(part) for part in torch.split(rows, self.form.tile.most)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out.view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        missing = self.form.tile.least - len(rows)
        if missing > 0:
            rows = functional.pad(rows, (0, 0, 0, missing))
        out = self._product(rows)
        return out[:-missing] if missing > 0 else out


def product(linear: nn.Linear, expected_rows: int | None) -> Product:
    """A layer's product; it keeps the weight in torch's order (which an embedding may share) or its own."""
    bias: torch.Tensor | None = linear.bias
    bias = None if bias is None else bias.detach()
    if expected_rows is None:
        return partial(functional.linear, weight=linear.weight.detach(), bias=bias)
    return partial(onednn.multiply, packed=onednn.reorder(linear.weight, expected_rows), bias=bias)


def best_form(linear: nn.Linear, generator: torch.Generator) -> Form | None:
    """The form of a layer with the largest tile; None where only torch's order will do, and needs no tile.

    Args:
        linear: a layer; the answer holds for all of its shape.
        generator: of the numbers to try.
    """
    twin, rows = telling(linear, generator)
    # Common numbers tell where a bias is added, telling ones in which order the products are.
    common = torch.randn(len(rows), linear.in_features, generator=generator).to(linear.weight.dtype)
    large = _is_large(linear)
    found: list[Form] = []
    for expected in _EXPECTED_ROWS if onednn.is_available(linear.weight.dtype) else ():
        tries = [(product(linear, expected), common), (product(twin, expected), rows)]
        found.append(Form(agreeing_tile(tries, large=large), expected))
        if found[-1].tile.most >= _ENOUGH_ROWS:
            return found[-1]
    plain = [(linear, common), (twin, rows)]
    if not large and all(_agree(*one, [*_ALL_COUNTS, *_MANY_ROWS]) for one in plain):
        return None
    found.append(Form(agreeing_tile(plain, large=large)))
    return max(found, key=lambda form: form.tile.most)


def _is_large(linear: nn.Linear) -> bool:
    return linear.weight.numel() > _LARGE_WEIGHT


def agreeing_tile(tries: Sequence[tuple[Product, torch.Tensor]], *, large: bool = False) -> Tile:
    """The largest tile in which all row counts have the same bits.

    Args:
        tries: products of one shape, each with rows ``[512, n_in]`` to try it with.
        large: not every count is tried.
    """
    counts = _FEW_COUNTS if large else _ALL_COUNTS
    for most in MOST_ROWS:
        for least in (one for one in LEAST_ROWS if one <= most):
            tried = [n for n in counts if least <= n <= most]
            if all(_agree(multiply, rows[:most], tried) for multiply, rows in tries):
                return Tile(least, most)
    return Tile(1, 1)


def telling(linear: nn.Linear, generator: torch.Generator) -> tuple[nn.Linear, torch.Tensor]:
    """A layer of the same shape and rows for it whose products cancel, so that only rounding is left.

    Rounded to 16 bits, sums of common numbers look alike in nearly every order; these show any order.

    Returns:
        The layer and ``[512, n_in]``.
    """
    n_out, n_in = linear.weight.shape
    # By way of meta: random numbers for an output layer take seconds, and all are overwritten.
    with torch.device("meta"):
        twin = nn.Linear(n_in, n_out, bias=linear.bias is not None, dtype=linear.weight.dtype)
    twin.to_empty(device="cpu")
    half = (n_in - 1) // 2
    with torch.no_grad():
        weight = _spread(min(n_out, _DRAWN), half, generator).to(linear.weight.dtype)
        weight = weight.repeat(-(-n_out // len(weight)), 1)[:n_out]
        twin.weight[:, :half], twin.weight[:, half : 2 * half] = weight, -weight
        twin.weight[:, 2 * half :] = 0
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


@torch.inference_mode()
def _agree(multiply: Product, rows: torch.Tensor, counts: list[int]) -> bool:
    """Whether rows have the same bits n at a time and all at once, for every count up to all of them."""
    whole = multiply(rows)
    for n in counts:
        # A row of a small layer has few sums to tell by, so more rows are tried.
        most = max(n, -(-_SUMS // whole.shape[1]))
        for start in range(0, min(most, len(rows)) - n + 1, n):
            if not torch.equal(multiply(rows[start : start + n].clone()), whole[start : start + n]):
                return False
    return True


def tile_layers(model: nn.Module) -> dict[str, int]:
    """Give the linear layers of a CPU model forms with tiles where that is needed, in place.

    A reordered weight replaces the layer's; where an embedding shares it, both are kept.

    Returns:
        How many were reordered, under ``reordered``, only cut, under ``tiled``, and neither, under ``plain``.
    """
    counts = {"reordered": 0, "tiled": 0, "plain": 0}
    forms: dict[tuple[int, int, bool], Form | None] = {}
    generator = torch.Generator().manual_seed(0)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear:
                continue
            n_out, n_in = child.weight.shape
            shape = (n_out, n_in, child.bias is not None)
            if shape not in forms:
                forms[shape] = best_form(child, generator)
            if (form := forms[shape]) is None:
                counts["plain"] += 1
                continue
            setattr(parent, name, TiledLinear(child, form))
            counts["tiled" if form.expected_rows is None else "reordered"] += 1
    return counts
