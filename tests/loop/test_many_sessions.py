"""Many sessions in one engine: neighbours, too little memory, shared beginnings, waves of abandoned ones."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest

from draftwire_cloud.engine.arena import BLOCK_TOKENS
from draftwire_cloud.engine.slots import SlotStore
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.server import CloudServer
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafter import Drafter
from draftwire_edge.generation import GenerationRequest
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from loop.harness import connected, serving
from loop.scripted_target import scripted


def requests(n: int, most_prompt: int = 40) -> list[GenerationRequest]:
    chosen = random.Random(5)
    return [
        GenerationRequest(
            tuple(chosen.randrange(3, 200) for _ in range(chosen.randrange(1, most_prompt))),
            SamplingParams(temperature=chosen.choice([0.0, 1.0]), seed=number),
            max_tokens=chosen.randrange(10, 60),
        )
        for number in range(n)
    ]


async def test_a_text_does_not_depend_on_its_neighbours(
    loaded: LoadedTarget, drafters: dict[str, Drafter]
) -> None:
    """Other sessions of every mode and length, and one whose prompt is being read meanwhile."""
    wanted = requests(8)
    long = GenerationRequest(tuple(3 + i % 190 for i in range(300)), max_tokens=5)
    modes = [Mode.CLOUD, Mode.LOCKSTEP, Mode.DUPLEX, Mode.PIPELINED]
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = [await edge.write(request) for request in [*wanted, long]]
        together = await asyncio.gather(
            *(
                edge.write(request, None if mode is Mode.CLOUD else drafters["noisy"], GammaPolicy(4, mode))
                for request, mode in zip(
                    wanted[:1] + wanted[4:], [Mode.DUPLEX] + [Mode.CLOUD] * 4, strict=True
                )
            ),
            edge.write(long),
        )
        for mode in modes[1:3]:
            one = await asyncio.gather(
                edge.write(wanted[1], drafters["noisy"], GammaPolicy(4, mode)),
                *(edge.write(request) for request in wanted[2:]),
            )
            assert [r.token_ids for r in one] == [r.token_ids for r in alone[1:8]]
    expected = [alone[0], *alone[4:8], alone[8]]
    assert [r.token_ids for r in together] == [r.token_ids for r in expected]


async def test_too_little_memory_delays_texts_and_changes_none(loaded: LoadedTarget) -> None:
    """Three blocks for six sessions: some are emptied and built again, and every text is the same."""
    wanted = requests(6)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = [await edge.write(request) for request in wanted]
    target = loaded.target
    layout, before = target.slots.layout, target.slots
    target.slots = SlotStore(layout, 3 * BLOCK_TOKENS * layout.bytes_per_token)
    try:
        async with serving(loaded, EngineLimits(lease_s=60)) as server, connected(server, loaded) as edge:
            for first, second in pairwise(wanted):
                both = await asyncio.gather(edge.write(first), edge.write(second))
                assert [one.token_ids for one in both] == [
                    alone[wanted.index(first)].token_ids,
                    alone[wanted.index(second)].token_ids,
                ]
            assert server.engine._leases.counts.dropped > 0
    finally:
        target.slots = before


async def test_sessions_that_begin_alike_share_what_was_read(loaded: LoadedTarget) -> None:
    system = tuple(3 + i % 150 for i in range(200))
    first, second = (GenerationRequest((*system, end), max_tokens=20) for end in (4, 5))
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = await edge.write(second)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        await edge.write(first)
        assert (await edge.write(second)).token_ids == alone.token_ids
        assert server.engine._leases.counts.shared_tokens == 200


@pytest.mark.nightly
async def test_ten_thousand_abandoned_sessions_leave_nothing() -> None:
    """All 50 of a wave are open when they are dropped: no slot, stream or memory stays behind."""
    sizes = []
    loaded, target = scripted([b"x"] * 20, [7] * 60, prompt_length=3)
    target.seconds = 0.01  # so that all of a wave are open before the first has its 50 tokens
    limits = EngineLimits(lease_s=0.0, max_sessions=64)
    async with serving(loaded, limits) as server, connected(server, loaded) as edge:
        for wave in range(1, 201):
            tasks = [
                asyncio.create_task(edge.write(GenerationRequest((3, 4, 5 + i % 9), max_tokens=50)))
                for i in range(50)
            ]
            await streams_are(server, 50)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await streams_are(server, 0)
            if wave in {40, 200}:
                await asyncio.sleep(0.6)
                gc.collect()
                sizes.append(resident_bytes())
                assert server.engine.num_parked == 0
                assert not target.slots.slots
    assert sizes[1] <= 1.05 * sizes[0], sizes


async def streams_are(server: CloudServer, n: int) -> None:
    while server.engine.num_streams != n:  # noqa: ASYNC110  # the engine has no event for this, nor needs one
        await asyncio.sleep(0.002)


def resident_bytes() -> int:
    """Memory of this process."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("needs /proc")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
