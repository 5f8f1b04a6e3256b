"""``doctor --exactness``: finds nothing where nothing differs, and finds what was put there."""

from dataclasses import replace

import pytest
import torch

from draftwire_cloud.engine.target import Target
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.exactness import GAMMAS, ExactnessProbe
from draftwire_edge.handshake import fetch_card
from loop.harness import Edge, connected, serving

COUNT = 24


async def _probe(edge: Edge, loaded: LoadedTarget) -> ExactnessProbe:
    card = replace(await fetch_card(edge.channel), eos_ids=())
    return ExactnessProbe(edge.channel, card, loaded.vocabulary.pieces, range(60, 70), COUNT)


async def test_fixed_shapes_show_no_difference(loaded: LoadedTarget) -> None:
    async with serving(loaded) as server, connected(server, loaded) as edge:
        found = await (await _probe(edge, loaded)).measure()
    assert [one.way for one in found] == [f"blocks of {g}" for g in GAMMAS]
    assert all(one.positions == COUNT and not one.differences for one in found)
    assert "every bit the same" in str(found[0])


@pytest.mark.parametrize(("size", "flips"), [(1e-5, False), (50.0, True)])
async def test_a_block_that_computes_otherwise_is_found(
    loaded: LoadedTarget, monkeypatch: pytest.MonkeyPatch, size: float, flips: bool
) -> None:
    right = Target.forward

    def wrong(self: Target, spans: list) -> list[torch.Tensor]:  # type: ignore[type-arg]
        rows = right(self, spans)
        # Blocks only: one id of the last row gets another logit.
        return [row if len(row) < 3 else _nudged(row, size) for row in rows]

    monkeypatch.setattr(Target, "forward", wrong)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        found = await (await _probe(edge, loaded)).measure()
    one, four, seven = found
    assert not one.differences
    for blocks in (four, seven):
        assert blocks.differences
        assert any(difference.flipped for difference in blocks.differences) is flips
        assert all(difference.size > 0.0 for difference in blocks.differences)
        assert "differ, by up to" in str(blocks)


def _nudged(row: torch.Tensor, size: float) -> torch.Tensor:
    row = row.clone()
    second = row[-1].topk(2).indices[1]
    row[-1, second] += size
    return row
