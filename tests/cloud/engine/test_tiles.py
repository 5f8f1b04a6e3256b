"""16-bit layers in tiles: bits of a row do not depend on the rows beside it, and bad kernels are noticed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine.tiles import Tile, TiledLinear, agreeing_tile, telling, tile_layers

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
        twin = TiledLinear(twin, tiled.tile)  # type: ignore[assignment]  # as good as a linear layer here
    with torch.inference_mode():
        for layer, x in ((tiled, torch.randn(180, n_in).bfloat16()), (twin, rows[:180])):
            alone = in_groups(layer, x, 1)
            for size in (2, 3, 5, 9, 17, 31, 33, 60, 180):
                assert torch.equal(in_groups(layer, x, size), alone), size


def test_tiles_multiply_like_the_layer() -> None:
    linear = nn.Linear(200, 70, dtype=torch.bfloat16)
    x = torch.randn(2, 41, 200).bfloat16()
    with torch.inference_mode():
        torch.testing.assert_close(TiledLinear(linear, Tile(4, 16))(x), linear(x), atol=0.02, rtol=0.02)


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
        (frozenset[int](), None),
        (frozenset({1}), Tile(2, 64)),
        (frozenset(range(33, 65)), Tile(1, 32)),
        (frozenset({1, 2, 3, 40}), Tile(4, 32)),
        (frozenset(range(2, 65)), Tile(2, 64)),
    ],
)
def test_a_kernel_that_changes_its_order_is_cut_where_it_does(odd: frozenset[int], tile: Tile | None) -> None:
    layer = Moody(12, 4096, bias=False, dtype=torch.bfloat16)
    layer.odd = odd

    import draftwire_cloud.engine.tiles as module

    real = module.telling

    def moody_telling(linear: nn.Linear, seed: torch.Generator) -> tuple[nn.Linear, torch.Tensor]:
        twin, rows = real(linear, seed)
        moody = Moody(12, 4096, bias=False, dtype=torch.bfloat16)
        moody.odd, moody.weight = odd, twin.weight
        return moody, rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "telling", moody_telling)
        assert agreeing_tile(layer, generator()) == tile


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
