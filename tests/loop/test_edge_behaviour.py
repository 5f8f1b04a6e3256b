"""What the edge must not do to its user: hold text back, count wrongly, give up, or stay slow."""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import Controller, GammaPolicy
from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import DoneEvent, GenerationRequest, NoticeEvent, TokenEvent
from draftwire_edge.proposer import Proposer
from draftwire_edge.session import EdgeSession
from draftwire_protocol.errors import ModelMismatchError
from draftwire_protocol.messages import Mode, Open
from draftwire_protocol.params import SamplingParams
from loop.harness import CLOUD_ALONE, Edge, ScriptedDrafter, connected, serving
from loop.relay import relaying
from loop.scripted_target import scripted

PIECES = [f" {i}".encode() for i in range(40)]
PROMPT = (5, 6, 7)
SCRIPT = list(range(3, 35))
LOCKSTEP = GammaPolicy(3, Mode.LOCKSTEP)


@dataclass
class SlowReader(ScriptedDrafter):
    """Takes its time to read a prompt."""

    read_s: float = 0.0

    def prefill(self, context: Sequence[int]) -> None:
        time.sleep(self.read_s)
        self.read_s = 0.0


@dataclass
class Silent(ScriptedDrafter):
    """Never has anything to propose."""

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        return []


@dataclass
class Breaking(ScriptedDrafter):
    """Breaks in mid-text, with an error of its own."""

    closed: bool = False

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        if len(context) > 12:
            raise OSError("the file went away")
        return super().draft(context, proposer, limit, want_more)


@dataclass
class Stuck(ScriptedDrafter):
    """Drafts until it is let go."""

    drafting: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        self.drafting.set()
        self.go_on.wait(10)
        return super().draft(context, proposer, limit, want_more)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_a_cancelled_text_closes_its_drafter_after_the_draft_at_hand(cancellations: int) -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=3)
    drafter = Stuck(SCRIPT, 3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        session = EdgeSession(edge.channel, loaded.card, PIECES, drafter, Controller(LOCKSTEP))

        async def write() -> None:
            async with aclosing(session):
                async for _ in session.generate(GenerationRequest(PROMPT, max_tokens=8)):
                    pass

        writing = asyncio.create_task(write())
        assert await asyncio.to_thread(drafter.drafting.wait, 10)
        for _ in range(cancellations):
            writing.cancel()
            await asyncio.sleep(0.05)
        assert not writing.done()
        assert not drafter.closed
        drafter.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert drafter.closed


async def test_the_first_token_is_shown_while_the_drafter_still_reads() -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=3)
    drafter = SlowReader(SCRIPT, 3, read_s=1.0)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        events = edge.events(GenerationRequest(PROMPT, max_tokens=8), drafter, LOCKSTEP)
        first = await asyncio.wait_for(anext(events), timeout=0.8)
        assert isinstance(first, TokenEvent)
        rest = [event async for event in events]
    assert isinstance(rest[-1], DoneEvent)
    result = rest[-1].result
    assert result.token_ids == tuple(SCRIPT[:8])
    # Reading the prompt is no part of the time to draft a token.
    assert result.timings.draft_ms_per_token < 100


async def test_a_drafter_with_nothing_to_say_ends_in_cloud_mode() -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        result = await edge.write(GenerationRequest(PROMPT, max_tokens=30), Silent(SCRIPT, 3), GammaPolicy())
    assert result.token_ids == tuple(SCRIPT[:30])
    assert result.sources.count("fill") > 20


async def test_a_drafter_that_breaks_costs_one_notice_and_no_token() -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        events = edge.events(GenerationRequest(PROMPT, max_tokens=30), Breaking(SCRIPT, 3), LOCKSTEP)
        seen = [event async for event in events]
    notices = [event.message for event in seen if isinstance(event, NoticeEvent)]
    assert len(notices) == 1
    assert "the file went away" in notices[0]
    assert [event.token_id for event in seen if isinstance(event, TokenEvent)] == SCRIPT[:30]


async def test_figures_cover_all_streams_of_a_resumed_text(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter]
) -> None:
    request = GenerationRequest(tuple(range(60, 70)), SamplingParams(0.9, seed=4), max_tokens=60)
    async with (
        serving(loaded) as server,
        relaying(server.port) as relay,
        CloudChannel(f"127.0.0.1:{relay.port}") as channel,
    ):
        seen = 0
        async for event in Edge(channel, loaded).events(request, drafters["noisy"], LOCKSTEP):
            seen += isinstance(event, TokenEvent)
            if isinstance(event, TokenEvent) and seen in {20, 40}:
                relay.cut()
            if isinstance(event, DoneEvent):
                result = event.result
    usage, timings = result.usage, result.timings
    assert usage.completion_tokens == len(result.token_ids) == 60
    assert usage.num_accepted_tokens == timings.num_accepted_tokens == result.sources.count("draft")
    # Every target token came from one forward pass of its own.
    assert usage.target_passes == timings.target_passes == 60 - result.sources.count("draft")


async def test_a_full_cloud_in_mid_text_is_waited_for(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter]
) -> None:
    request = GenerationRequest(tuple(range(60, 70)), SamplingParams(0.9, seed=4), max_tokens=40)
    async with serving(loaded, EngineLimits(max_sessions=1)) as server, connected(server, loaded) as direct:
        alone = await direct.write(request)
        async with relaying(server.port) as relay, CloudChannel(f"127.0.0.1:{relay.port}") as channel:
            ids = []
            blocker = direct.channel.decode()
            async for event in Edge(channel, loaded).events(request, drafters["noisy"], LOCKSTEP):
                if isinstance(event, TokenEvent):
                    ids.append(event.token_id)
                    if len(ids) == 10:
                        relay.cut()
                        await asyncio.sleep(0.1)
                        await blocker.send(Open("b", (60,), SamplingParams(), 5, Mode.LOCKSTEP))
                        await blocker.receive()
                        asyncio.get_running_loop().call_later(0.5, blocker.cancel)
        assert tuple(ids) == alone.token_ids


async def test_another_model_never_continues_a_text(loaded: LoadedTarget) -> None:
    request = GenerationRequest(tuple(range(60, 70)), SamplingParams(1.0, seed=4), max_tokens=300)
    other = replace(loaded, card=replace(loaded.card, model_id=b"another!"))
    async with serving(loaded) as server, CloudChannel(f"127.0.0.1:{server.port}") as channel:
        events = Edge(channel, loaded).events(request, None, CLOUD_ALONE)
        await anext(events)
        await server.__aexit__(None, None, None)
        async with serving(other, port=server.port):
            with pytest.raises(ModelMismatchError):
                async for _ in events:
                    pass
