"""How streams, slots and the engine begin and end, through the real service."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.judge import Judge
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.scheduler import INBOX_MESSAGES
from draftwire_cloud.server import CloudServer
from draftwire_edge.channel import DecodeStream
from draftwire_edge.generation import GenerationRequest, TokenEvent
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DraftwireError,
    ModelMismatchError,
    ProtocolError,
    StaleDraftError,
)
from draftwire_protocol.messages import (
    SERVICE_NAME,
    CloudMessage,
    Draft,
    Finished,
    Mode,
    Open,
    Opened,
    SetMode,
    Verdict,
)
from draftwire_protocol.params import SamplingParams
from loop.harness import CLOUD_ALONE, Edge, connected, serving
from loop.scripted_target import ScriptedTarget, scripted

PIECES = [f" {i}".encode() for i in range(40)]
PROMPT = (5, 6, 7)
PATIENCE_S = 5.0


def threes() -> tuple[LoadedTarget, ScriptedTarget]:
    """A target that writes token 3 for ever."""
    return scripted(PIECES, [3] * 500, prompt_length=3)


async def begin(edge: Edge, session_id: str = "raw", **fields: Any) -> DecodeStream:
    """A stream that has sent its Open."""
    request = Open(session_id, PROMPT, SamplingParams(), 20, Mode.LOCKSTEP)
    stream = edge.channel.decode()
    await stream.send(replace(request, **fields))
    return stream


async def waiting(edge: Edge, session_id: str = "raw", **fields: Any) -> DecodeStream:
    """A stream whose cloud waits for a draft."""
    stream = await begin(edge, session_id, **fields)
    assert isinstance(await stream.receive(), Opened)
    assert isinstance(await stream.receive(), Verdict)
    return stream


async def soon(stream: DecodeStream) -> CloudMessage:
    return await asyncio.wait_for(stream.receive(), PATIENCE_S)


async def test_another_model_does_not_continue_a_text(loaded: LoadedTarget) -> None:
    assert len(loaded.card.model_id) == 8
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for accepted in (b"", loaded.card.model_id):
            (await waiting(edge, model_id=accepted)).cancel()
        with pytest.raises(ModelMismatchError, match=r"now serves another model.*start the text again"):
            await soon(await begin(edge, model_id=b"another."))


async def test_a_server_replaced_by_another_model_in_mid_text_is_an_error() -> None:
    first, second = (replace(target, card=replace(target.card, model_id=name))
                     for target, name in ((threes()[0], b"first"), (threes()[0], b"second")))  # fmt: skip
    async with serving(first) as server, connected(server, first) as edge:
        events = edge.events(GenerationRequest(PROMPT, max_tokens=400), None, CLOUD_ALONE)
        async for event in events:
            assert isinstance(event, TokenEvent)
            break
        await server.__aexit__(None, None, None)
        async with serving(second, port=server.port):
            with pytest.raises(ModelMismatchError):
                async for _ in events:
                    pass


async def test_the_next_turn_of_a_chat_reuses_its_prefix() -> None:
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await begin(edge, prompt_ids=PROMPT * 10, mode=Mode.CLOUD)
        while not isinstance(await soon(stream), Finished):
            pass
        await asyncio.sleep(0.1)
        turn = PROMPT * 10 + (3,) * 20 + (9, 9, 9)
        opened = await soon(await begin(edge, prompt_ids=turn, mode=Mode.CLOUD))
        assert isinstance(opened, Opened)
        assert opened.cached >= 30 + 19


async def test_an_ending_does_not_wait_for_the_steps_of_others() -> None:
    loaded, target = threes()
    forward, permits = target.forward, threading.Semaphore(0)

    def rationed(spans: Sequence[Any]) -> list[torch.Tensor]:
        permits.acquire()
        return forward(spans)

    target.forward = rationed  # type: ignore[method-assign]
    async with serving(loaded) as server, connected(server, loaded) as edge:
        await begin(edge, "long", mode=Mode.CLOUD, max_tokens=400)
        short = await begin(edge, "short", max_tokens=1)
        greeting = asyncio.create_task(short.receive())
        while not greeting.done():
            permits.release()
            await asyncio.sleep(0.05)
        # The engine is held in a step of the long text from here on.
        assert isinstance(await soon(short), Verdict)
        assert isinstance(await soon(short), Finished)
        permits.release(1000)


async def test_a_dead_engine_ends_every_stream_and_is_not_ready() -> None:
    loaded, _ = threes()

    def bug(*_: object) -> None:
        raise RuntimeError("bug in the loop")

    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        server.engine._scheduler.next_step = bug  # type: ignore[assignment,method-assign]
        with pytest.raises(DraftwireError, match="the server's engine stopped"):
            await soon(stream)
        with pytest.raises(DraftwireError, match="the server's engine stopped"):
            await soon(await begin(edge))
        assert await health(server) == health_pb2.HealthCheckResponse.NOT_SERVING


async def health(server: CloudServer) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        return int(answer.status)


@pytest.mark.parametrize("error", [RuntimeError("bug"), MemoryError(), ProtocolError("odd")])
async def test_a_failing_preparation_is_logged_once_and_ends_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def fail(_: Judge, position: int) -> None:
        asked.append(position)
        raise error

    monkeypatch.setattr(Judge, "prepare", fail)
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge, sampling=SamplingParams(1e-6))
        for position in (4, 6):
            await asyncio.sleep(0.2)
            await stream.send(Draft(0, position, (3,)))
            assert isinstance(await soon(stream), Verdict)
        assert asked == [4]
        assert [record.message for record in caplog.records if record.exc_info] == [
            "preparing a verdict failed; this text goes on without"
        ]
        assert len((await edge.write(GenerationRequest(PROMPT, max_tokens=3))).token_ids) == 3


async def test_work_that_makes_no_sense_ends_its_stream_only() -> None:
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        (open_stream,) = server.engine._scheduler.streams
        open_stream.slot.ids.extend([3] * 40)  # nothing is left to feed, which Span refuses
        await stream.send(Draft(0, 4, ()))
        with pytest.raises(DraftwireError, match="the target failed"):
            await soon(stream)
        assert len((await edge.write(GenerationRequest(PROMPT, max_tokens=3))).token_ids) == 3


async def test_a_reopened_session_takes_over_the_slot_of_its_old_stream() -> None:
    loaded, _ = threes()
    async with serving(loaded, EngineLimits(max_sessions=1)) as server, connected(server, loaded) as edge:
        old = await waiting(edge, prompt_ids=PROMPT * 10)
        new = await begin(edge, prompt_ids=PROMPT * 10, committed_ids=(3,))
        opened = await soon(new)
        assert isinstance(opened, Opened)
        assert opened.cached == 30
        with pytest.raises(StaleDraftError, match="another stream"):
            await soon(old)
        await asyncio.sleep(0.1)
        assert (server.engine.num_streams, server.engine.num_parked) == (1, 0)
        await new.send(Draft(0, 32, (3,)))
        assert isinstance(await soon(new), Verdict)
        assert isinstance(await soon(new), Verdict)


@pytest.mark.parametrize("vanished", [False, True])
async def test_a_session_reopened_during_its_step_gets_the_slot_after_it(vanished: bool) -> None:
    loaded, target = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        old = await waiting(edge)
        target.entered.clear()
        target.go.clear()
        await old.send(Draft(0, 4, (3, 3)))
        await asyncio.to_thread(target.entered.wait)
        if vanished:
            old.cancel()
            await asyncio.sleep(0.1)
        new = [await begin(edge, committed_ids=(3,)) for _ in range(2)]
        await asyncio.sleep(0.1)
        target.go.set()
        # The two new ones are superseded in some order; one remains, on the one slot there is.
        ends = [await asyncio.gather(soon(one), return_exceptions=True) for one in new]
        assert any(isinstance(end, Opened) for (end,) in ends)
        await asyncio.sleep(0.1)
        assert (server.engine.num_streams, server.engine.num_parked) == (1, 0)
        assert len(target.slots.slots) == 1


async def test_a_silent_stream_gives_up_its_place_and_can_be_resumed() -> None:
    loaded, _ = threes()
    limits = EngineLimits(max_sessions=1, idle_s=0.3)
    async with serving(loaded, limits) as server, connected(server, loaded) as edge:
        silent = await waiting(edge)
        with pytest.raises(CloudUnavailableError, match="no draft came"):
            await soon(silent)
        assert (server.engine.num_streams, server.engine.num_parked) == (0, 1)
        opened = await soon(await begin(edge, committed_ids=(3,)))
        assert isinstance(opened, Opened)
        assert opened.cached == 3


async def test_a_half_closed_stream_is_not_waited_for() -> None:
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        await stream._call.done_writing()
        assert isinstance(await soon(stream), Finished)
        # In cloud mode there is nothing to wait for: the text is written to its end.
        listener = await begin(edge, "listener", mode=Mode.CLOUD)
        await listener._call.done_writing()
        while not isinstance(last := await soon(listener), Finished):
            pass
        assert last.usage.completion_tokens == 20
        await asyncio.sleep(0.1)
        assert server.engine.num_streams == 0


async def test_an_edge_that_floods_is_not_read_any_more() -> None:
    loaded, target = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        (open_stream,) = server.engine._scheduler.streams
        target.entered.clear()
        target.go.clear()
        await stream.send(Draft(0, 4, (3,)))
        await asyncio.to_thread(target.entered.wait)

        async def flood() -> None:
            for _ in range(1000):
                await stream.send(SetMode(Mode.LOCKSTEP))
            await stream.send(Draft(0, 6, (3,)))

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(0.5)
        assert len(open_stream.inbox) == INBOX_MESSAGES
        target.go.set()
        assert [type(await soon(stream)) for _ in range(2)] == [Verdict, Verdict]
        await flooding


async def test_a_flooding_edge_that_vanishes_leaves_nothing_behind() -> None:
    loaded, target = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        target.entered.clear()
        target.go.clear()
        await stream.send(Draft(0, 4, (3,)))
        await asyncio.to_thread(target.entered.wait)
        for _ in range(2 * INBOX_MESSAGES):
            await stream.send(SetMode(Mode.LOCKSTEP))
        stream.cancel()
        await asyncio.sleep(0.1)
        target.go.set()
        await asyncio.sleep(0.1)
        assert (server.engine.num_streams, server.engine.num_parked) == (0, 1)


async def test_leases_end_on_an_idle_server() -> None:
    loaded, target = threes()
    async with serving(loaded, EngineLimits(lease_s=0.2)) as server, connected(server, loaded) as edge:
        await edge.write(GenerationRequest(PROMPT, max_tokens=2))
        await asyncio.sleep(0.8)
        assert server.engine.num_parked == 0
        assert not target.slots.slots


@pytest.mark.parametrize("letter", ["x", "ß", "😀"])
async def test_a_long_error_keeps_its_status(letter: str) -> None:
    loaded, target = threes()

    def boom(_: Sequence[Any]) -> list[torch.Tensor]:
        raise RuntimeError(letter * 20_000)

    target.forward = boom  # type: ignore[method-assign,assignment]
    async with serving(loaded) as server, connected(server, loaded) as edge:
        with pytest.raises(DraftwireError, match=f"the target failed: {letter}"):
            await soon(await begin(edge))


async def test_epochs_at_the_end_of_their_range_end_in_a_clear_error() -> None:
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        await stream.send(Draft(2**32 - 1, 4, (9,)))
        with pytest.raises(ProtocolError, match="epoch 4294967295"):
            await soon(stream)


async def test_a_draft_behind_the_text_is_answered_with_aborted() -> None:
    loaded, _ = threes()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await waiting(edge)
        await stream.send(Draft(0, 3, (9,)))
        with pytest.raises(StaleDraftError, match="starts at 3, the text ends at 4"):
            await soon(stream)
