"""A target split over two processes computes what the whole one does."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target
from draftwire_cloud.loading import TargetConfig
from draftwire_cloud.tensor_parallel.group import RankGroup
from tiny.architectures import Arch, make_random_target

#: Most that a sum in another order moved a logit in float32 was 9e-6, of logits with a deviation of 4.
CLOSE = 1e-4


@pytest.fixture(autouse=True)
def _variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def rows_of(target: Target, seed: int) -> torch.Tensor:
    """Logits of prompts, blocks, wrong drafts, a copied beginning and single tokens, in uneven batches."""
    chance, rows = random.Random(seed), list[torch.Tensor]()
    a, b = target.slots.open(500), target.slots.open(500)

    def run(*wanted: tuple[Slot, int]) -> None:
        spans = [Span(slot, [chance.randrange(256) for _ in range(n)], n) for slot, n in wanted]
        rows.extend(target.forward(spans))

    run((a, 40), (b, 7))
    for n in (1, 6, 17, 3):
        run((a, n), (b, 5))
        a.truncate(a.length - n // 2)
        b.truncate(b.length - 4)
    c = target.slots.open(500)
    target.slots.inherit(c, a, 30)
    target.slots.release(a)
    run((c, 9), (b, 1))
    run((b, 300), (c, 1))
    run((c, 2), (b, 3))
    for slot in (b, c):
        target.slots.release(slot)
    return torch.cat(rows)


@pytest.mark.parametrize("arch", ["qwen2", "mixtral"])
async def test_logits_of_two_ranks_are_those_of_one(tmp_path: Path, arch: Arch) -> None:
    folder = make_random_target(tmp_path / arch, arch)
    whole = Target.load(folder, dtype="float32", threads=1, weights="plain")
    async with RankGroup(TargetConfig(folder, "split", "float32", threads=1, ranks=2)) as group:
        loaded = await group.load(lambda _: None)
        ours, theirs = await asyncio.to_thread(rows_of, loaded.target, 0), rows_of(whole, 0)
    layers, all_layers = loaded.target.slots.layout.layers, whole.slots.layout.layers
    assert [one.n_heads * 2 for one in layers.values()] == [one.n_heads for one in all_layers.values()]
    assert loaded.target.facts.weights == "plain, split over 2 ranks"
    assert loaded.exactness.is_exact, loaded.exactness.summary()
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    assert float((ours - theirs).abs().max()) < CLOSE
