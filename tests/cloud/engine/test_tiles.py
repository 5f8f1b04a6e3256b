"""16-bit layers in tiles: bits of a row do not depend on the rows beside it, and bad kernels are noticed."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine import onednn
from draftwire_cloud.engine.tiles import (
    Form,
    Tile,
    TiledLinear,
    agreeing_tile,
    best_form,
    telling,
    tile_layers,
)

SHAPES = [(64, 64), (96, 16), (128, 300), (512, 256), (1536, 256), (1001, 77)]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def in_groups(layer: nn.Module, rows: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([layer(part.clone()) for part in torch.split(rows, size)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_a_row_has_the_same_bits_in_any_company(n_in: int, n_out: int, *, bias: bool) -> None:
    layers = nn.Sequential(nn.Linear(n_in, n_out, bias=bias, dtype=torch.bfloat16))
    tile_layers(layers)
    twin, rows = telling(nn.Linear(n_in, n_out, bias=bias, dtype=torch.bfloat16), generator())
    tiled = layers[0]
    if isinstance(tiled, TiledLinear):
        twin = TiledLinear(twin, tiled.form)  # type: ignore[assignment]  # as good as a linear layer here
    with torch.inference_mode():
        for layer, x in ((tiled, torch.randn(180, n_in).bfloat16()), (twin, rows[:180])):
            alone = in_groups(layer, x, 1)
            for size in (2, 3, 5, 9, 17, 31, 33, 60, 180):
                assert torch.equal(in_groups(layer, x, size), alone), size


needs_reordering = pytest.mark.skipif(
    not onednn.is_available(torch.bfloat16), reason="this build does not reorder 16-bit weights"
)
ORDERS = [None, pytest.param(1, marks=needs_reordering), pytest.param(32, marks=needs_reordering)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("expected_rows", ORDERS)
def test_tiles_multiply_like_the_layer(expected_rows: int | None, *, bias: bool) -> None:
    linear = nn.Linear(200, 70, bias=bias, dtype=torch.bfloat16)
    tiled = TiledLinear(linear, Form(Tile(4, 16), expected_rows))
    x = torch.randn(2, 41, 200).bfloat16()
    with torch.inference_mode():
        torch.testing.assert_close(tiled(x), linear(x), atol=0.02, rtol=0.02)


@needs_reordering
@pytest.mark.parametrize(("expected_rows", "kept"), [(1, False), (32, False), (None, True)])
def test_a_reordered_weight_replaces_the_layers(expected_rows: int | None, *, kept: bool) -> None:
    linear = nn.Linear(576, 1536, dtype=torch.bfloat16)
    tiled = TiledLinear(linear, Form(Tile(1, 8), expected_rows))
    assert isinstance(tiled._product, partial)
    held = [one for one in tiled._product.keywords.values() if torch.is_tensor(one)]
    plain = [one for one in held if not one.is_mkldnn]
    assert any(one.data_ptr() == linear.weight.data_ptr() for one in plain) == kept
    assert not list(tiled.parameters())


def test_the_form_with_the_largest_tile_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import draftwire_cloud.engine.tiles as module

    tiles = iter([Tile(1, 2), Tile(2, 32), Tile(1, 8)])
    monkeypatch.setattr(module, "product", lambda linear, _rows: linear)
    monkeypatch.setattr(module, "agreeing_tile", lambda _tries, **_: next(tiles))
    monkeypatch.setattr(module, "_agree", lambda *_: False)
    monkeypatch.setattr(onednn, "is_available", lambda _dtype: True)
    linear = nn.Linear(64, 64, dtype=torch.bfloat16)
    assert best_form(linear, generator()) == Form(Tile(2, 32), 32)
    tiles = iter([Tile(1, 1), Tile(1, 1), Tile(1, 8)])
    assert best_form(linear, generator()) == Form(Tile(1, 8), None)
    monkeypatch.setattr(module, "_agree", lambda *_: True)
    tiles = iter([Tile(1, 1), Tile(1, 1)])
    assert best_form(linear, generator()) is None


class Moody(nn.Linear):
    """Adds in another order for some row counts."""

    odd: frozenset[int] = frozenset()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(self.in_features)
        if len(x) in self.odd:
            columns = columns.flip(0)
        total = torch.zeros(len(x), self.out_features)
        for column in columns.tolist():  # one by one: an order that is ours
            total += x[:, column, None].float() * self.weight[:, column].float()
        return total.to(x.dtype)


@pytest.mark.parametrize(
    ("odd", "tile"),
    [
        (frozenset[int](), Tile(1, 128)),
        (frozenset({1}), Tile(2, 128)),
        (frozenset(range(33, 129)), Tile(1, 32)),
        (frozenset({1, 2, 3, 40}), Tile(4, 32)),
        (frozenset(range(2, 129)), Tile(2, 128)),
    ],
)
def test_a_kernel_that_changes_its_order_is_cut_where_it_does(odd: frozenset[int], tile: Tile) -> None:
    twin, rows = telling(nn.Linear(12, 4096, bias=False, dtype=torch.bfloat16), generator())
    layer = Moody(12, 4096, bias=False, dtype=torch.bfloat16)
    layer.odd, layer.weight = odd, twin.weight
    assert agreeing_tile([(layer, rows)]) == tile


def test_telling_numbers_tell_what_common_ones_hide() -> None:
    common = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    twin, rows = telling(common, generator())
    with torch.inference_mode():
        for layer, x, hidden in ((common, torch.randn(512, 64).bfloat16(), True), (twin, rows, False)):
            halves = layer.weight[:, :32].float(), layer.weight[:, 32:].float()
            one_way = functional.linear(x[:, :32].float(), halves[0]) + functional.linear(
                x[:, 32:].float(), halves[1]
            )
            order = torch.randperm(64, generator=generator())
            another = functional.linear(x[:, order].float(), layer.weight[:, order].float())
            differing = (one_way.bfloat16() != another.bfloat16()).float().mean()
            assert (differing < 0.05) == hidden
