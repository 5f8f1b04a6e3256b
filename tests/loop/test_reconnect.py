"""Broken links and servers: the same text, or a clear error."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import Controller, GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import (
    DoneEvent,
    Event,
    GenerationRequest,
    GenerationResult,
    NoticeEvent,
    TokenEvent,
)
from draftwire_edge.handshake import fetch_card
from draftwire_edge.session import EdgeSession
from draftwire_protocol.errors import CloudUnavailableError, UserInputError
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.drafters import LentDrafter
from loop.harness import QUICK_RETRY, Edge, connected, serving
from loop.relay import relaying

REQUEST = GenerationRequest(tuple(range(60, 70)), SamplingParams(0.9, seed=4), max_tokens=60)
MODES = [
    GammaPolicy(3, Mode.LOCKSTEP),
    GammaPolicy(mode=Mode.CLOUD),
    GammaPolicy(5, Mode.PIPELINED),
    GammaPolicy(5, Mode.DUPLEX),
    GammaPolicy(),
]


@pytest.mark.parametrize("policy", MODES)
async def test_a_link_cut_several_times_loses_and_repeats_nothing(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter], policy: GammaPolicy
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as direct:
        alone = await direct.write(REQUEST)
        async with relaying(server.port) as relay, CloudChannel(f"127.0.0.1:{relay.port}") as channel:
            ids = []
            async for event in Edge(channel, loaded).events(REQUEST, drafters["noisy"], policy):
                if isinstance(event, TokenEvent):
                    ids.append(event.token_id)
                    if len(ids) in {1, 10, 25, 40}:
                        relay.cut()
                elif isinstance(event, DoneEvent):
                    assert event.result.token_ids == alone.token_ids
            assert tuple(ids) == alone.token_ids
            assert relay.connections >= 3


async def test_a_frozen_link_recovers_with_the_same_text(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter]
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as direct:
        alone = await direct.write(REQUEST)
        async with relaying(server.port) as relay, CloudChannel(f"127.0.0.1:{relay.port}") as channel:
            seen = 0
            async for event in Edge(channel, loaded).events(REQUEST, drafters["noisy"], GammaPolicy()):
                seen += isinstance(event, TokenEvent)
                if seen == 15 and isinstance(event, TokenEvent):
                    relay.freeze()
                    asyncio.get_running_loop().call_later(1.0, relay.thaw)
                if isinstance(event, DoneEvent):
                    assert event.result.token_ids == alone.token_ids


async def test_a_server_replaced_in_mid_text_is_replayed_to(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter]
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as direct:
        alone = await direct.write(REQUEST)
        port = server.port
        channel = CloudChannel(f"127.0.0.1:{port}")
        async with channel:
            card = await fetch_card(channel)
            pieces = loaded.vocabulary.pieces
            controller = Controller(GammaPolicy(3, Mode.LOCKSTEP))
            drafter = LentDrafter(drafters["noisy"], None)
            session = EdgeSession(channel, card, pieces, drafter, controller, QUICK_RETRY)
            events = session.generate(REQUEST)
            ids = [event.token_id async for event in _until(events, 12)]
            # The first server drains: streams end as resumable. Another one takes its port.
            await server.__aexit__(None, None, None)
            async with serving(loaded, port=port):
                rest = [event async for event in events]
            await session.aclose()
    assert isinstance(rest[-1], DoneEvent)
    result: GenerationResult = rest[-1].result
    assert result.token_ids == alone.token_ids
    assert [*ids, *(one.token_id for one in rest if isinstance(one, TokenEvent))] == list(alone.token_ids)


async def _until(events: AsyncIterator[Event], count: int) -> AsyncIterator[TokenEvent]:
    """The first ``count`` token events."""
    seen = 0
    async for event in events:
        if isinstance(event, TokenEvent):
            yield event
            seen += 1
            if seen == count:
                return


async def test_a_cloud_that_stays_away_is_said_once_and_then_a_clear_error(loaded: LoadedTarget) -> None:
    impatient = replace(QUICK_RETRY, deadline_s=0.3)
    async with serving(loaded) as server:
        channel = CloudChannel(f"127.0.0.1:{server.port}")
        await channel.__aenter__()
        card = await fetch_card(channel)
    session = EdgeSession(
        channel, card, loaded.vocabulary.pieces, None, Controller(GammaPolicy(mode=Mode.CLOUD)), impatient
    )
    events = session.generate(REQUEST)
    notice = await anext(events)
    with pytest.raises(CloudUnavailableError):
        await anext(events)
    assert isinstance(notice, NoticeEvent)
    assert "the cloud is away" in notice.message
    await session.aclose()
    await channel.__aexit__(None, None, None)


async def test_nobody_there_names_the_option() -> None:
    async with CloudChannel("127.0.0.1:1") as channel:
        with pytest.raises(UserInputError, match=r"--cloud: nothing answers at 127.0.0.1:1"):
            await fetch_card(channel)


async def test_an_idle_connection_stays_alive_and_is_not_cut_for_pinging(loaded: LoadedTarget) -> None:
    async with serving(loaded) as server, connected(server, loaded) as edge:
        await edge.write(GenerationRequest((60,), max_tokens=2))
        await asyncio.sleep(1.0)
        await edge.write(GenerationRequest((60,), max_tokens=2))
