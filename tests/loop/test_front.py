"""The front by itself, before services in this process: whatever an RPC carries arrives, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftwire_cloud.caller import HOST_KEY, TOKEN_KEY, caller_host, forwarded
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.replicas.front import Front
from draftwire_cloud.replicas.keeper import Keeper, Ready
from draftwire_cloud.replicas.router import Router
from draftwire_cloud.server import Address, CloudServer
from draftwire_cloud.status import DETAILS_KEY
from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.generation import DoneEvent, GenerationRequest, TokenEvent
from draftwire_protocol import codec
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol._pb import speculation_pb2_grpc as pb_grpc
from draftwire_protocol.errors import CloudUnavailableError, DraftwireError, ProtocolError
from draftwire_protocol.messages import SERVICE_NAME, Draft, Mode, Open, Opened
from draftwire_protocol.params import SamplingParams
from loop.harness import Edge
from loop.relay import relaying

TOKEN = "the front's"
REQUEST = GenerationRequest(tuple(range(60, 70)), SamplingParams(0.9, seed=4), max_tokens=60)


@dataclass
class LocalReplica:
    """A service of this process behind a link that can be cut; ``Keeper`` thinks it a process."""

    address: str
    pid: int
    broken: str = ""
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def ready(self) -> Ready:
        if self.broken:
            raise DraftwireError(self.broken)
        return Ready("tiny", self.address, self.pid, "exact")

    async def ended(self) -> None:
        await self.gone.wait()


@dataclass
class World:
    """A front, its replicas, and what was said."""

    front: Front
    router: Router
    servers: list[CloudServer]
    relays: list[Any]
    replicas: list[LocalReplica]
    notes: list[str]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.front.port}"

    @property
    def num_streams(self) -> list[int]:
        return [server.engine.num_streams for server in self.servers]


@asynccontextmanager
async def fronted(
    loaded: LoadedTarget, n: int = 2, limits: EngineLimits | None = None
) -> AsyncIterator[World]:
    """A front before ``n`` services of one target."""
    router = Router(60.0)
    world = World(Front(Address(port=0), router, TOKEN, grace_s=0.5), router, [], [], [], [])
    async with AsyncExitStack() as stack:
        for number in range(n):
            server = CloudServer(loaded, Address(port=0), limits or EngineLimits(), 0.5, TOKEN)
            world.servers.append(await stack.enter_async_context(server))
            world.relays.append(await stack.enter_async_context(relaying(server.port)))
            address = f"127.0.0.1:{world.relays[-1].port}"
            world.replicas.append(LocalReplica(address, number))
        await stack.enter_async_context(world.front)
        keepers = [Keeper(i, one, world.front, world.notes.append) for i, one in enumerate(world.replicas)]
        for keeper in keepers:
            await keeper.start()
        running = [asyncio.create_task(keeper.run()) for keeper in keepers]
        yield world
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not done():  # noqa: ASYNC110  # nothing here has an event for it
            await asyncio.sleep(0.005)


def lockstep(session_id: str = "s", **more: Any) -> Open:
    """Waits for a draft after its first token."""
    return Open(session_id, (60, 61, 62), SamplingParams(), 50, Mode.LOCKSTEP, **more)


async def test_new_sessions_are_spread_and_cancelled_ones_leave_nothing(loaded: LoadedTarget) -> None:
    async with fronted(loaded) as world, CloudChannel(world.address) as channel:
        streams = [channel.decode() for _ in range(4)]
        for number, stream in enumerate(streams):
            await stream.send(lockstep(f"s{number}"))
            await stream.send(Draft(0, 3, ()))
            assert isinstance(await stream.receive(), Opened)
        assert world.num_streams == [2, 2]
        for stream in streams:
            stream.cancel()
        await until(lambda: world.num_streams == [0, 0])
        await until(lambda: not sum(world.router._streams.values()))


async def test_a_cut_link_moves_the_session_and_the_replica_is_attached_again(loaded: LoadedTarget) -> None:
    async with fronted(loaded) as world, CloudChannel(world.address) as channel:
        edge = Edge(channel, loaded)
        alone = await edge.write(REQUEST)
        ids: list[int] = []
        async for event in edge.events(REQUEST, None, GammaPolicy(mode=Mode.CLOUD)):
            if isinstance(event, TokenEvent):
                ids.append(event.token_id)
                if len(ids) in {1, 20}:
                    for relay in world.relays:
                        relay.cut()
            elif isinstance(event, DoneEvent):
                assert event.result.token_ids == alone.token_ids
        assert tuple(ids) == alone.token_ids
        await until(lambda: world.router.live == {0, 1})
        assert any("gone" in note for note in world.notes)


async def test_the_replica_s_own_status_arrives_with_its_details(loaded: LoadedTarget) -> None:
    async with (
        fronted(loaded, 1, EngineLimits(max_sessions=1)) as world,
        grpc.aio.insecure_channel(world.address) as channel,
    ):
        decode = pb_grpc.SpeculationServiceStub(channel).Decode
        first: Any = decode()  # type: ignore[call-arg]  # the stubs miss the read/write style
        await first.write(codec.encode_edge(lockstep("a")))
        await until(lambda: world.num_streams == [1])
        second: Any = decode()  # type: ignore[call-arg]  # the stubs miss the read/write style
        await second.write(codec.encode_edge(lockstep("b")))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.read()
        trailing: Any = refused.value.trailing_metadata()
        status = Status.FromString(dict(trailing)[DETAILS_KEY])
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert any(detail.Is(RetryInfo.DESCRIPTOR) for detail in status.details)
        assert world.router.live == {0}
        first.cancel()


async def test_a_deadline_ends_the_call_at_the_replica_too(loaded: LoadedTarget) -> None:
    async with fronted(loaded, 1) as world, grpc.aio.insecure_channel(world.address) as channel:
        decode = pb_grpc.SpeculationServiceStub(channel).Decode
        call: Any = decode(timeout=1.0)  # type: ignore[call-arg]  # the stubs miss the read/write style
        await call.write(codec.encode_edge(lockstep()))
        await until(lambda: world.num_streams == [1])
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: world.num_streams == [0])


async def test_what_is_no_open_is_refused_as_by_the_service(loaded: LoadedTarget) -> None:
    async with fronted(loaded) as world, CloudChannel(world.address) as channel:
        stream = channel.decode()
        await stream.send(Draft(0, 3, (4,)))
        with pytest.raises(ProtocolError, match="must be Open"):
            await stream.receive()


async def test_questions_go_to_whoever_is_there_and_then_it_is_not_serving(loaded: LoadedTarget) -> None:
    async with (
        fronted(loaded) as world,
        CloudChannel(world.address) as channel,
        grpc.aio.insecure_channel(world.address) as raw,
    ):
        health = health_pb2_grpc.HealthStub(raw)
        question = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        card = await channel.get_model(piece_count=3)
        assert (card.model_id, len(card.pieces)) == (loaded.card.model_id, 3)
        assert await channel.get_tokenizer(max_bytes=1 << 24) == loaded.pack_tokenizer()
        # The first one is gone, and nobody has noticed yet.
        world.replicas[0].broken = "away"
        await world.servers[0].__aexit__(None, None, None)
        assert (await channel.get_model()).model_id == loaded.card.model_id
        assert (await health.Check(question)).status == health_pb2.HealthCheckResponse.SERVING
        world.replicas[1].broken = "away"
        world.replicas[1].gone.set()
        await until(lambda: not world.router.live)
        with pytest.raises(CloudUnavailableError, match="no replica answers"):
            await channel.get_model()
        await until(lambda: any("not back yet: away" in note for note in world.notes))
        assert (await health.Check(question)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        world.replicas[1].broken = ""
        await until(lambda: world.router.live == {1})
        assert (await health.Check(question)).status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_names_the_service(loaded: LoadedTarget) -> None:
    async with fronted(loaded, 1) as world, grpc.aio.insecure_channel(world.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = [one.name async for answer in call for one in answer.list_services_response.service]
        assert SERVICE_NAME in names


async def drained(stream: DecodeStream) -> None:
    """Read until it ends."""
    while True:
        await stream.receive()


async def test_a_front_that_stops_ends_streams_as_resumable(loaded: LoadedTarget) -> None:
    async with fronted(loaded, 1) as world, CloudChannel(world.address) as channel:
        stream = channel.decode()
        await stream.send(lockstep())
        await until(lambda: world.num_streams == [1])
        await world.front.__aexit__(None, None, None)
        with pytest.raises(CloudUnavailableError, match="shutting down; the session can be resumed"):
            await drained(stream)
        world.front._draining = asyncio.get_running_loop().create_future()  # it ends once more below


async def test_the_engine_is_told_the_edge_s_host_and_nobody_else_may_tell_it(loaded: LoadedTarget) -> None:
    async with (
        fronted(loaded, 1) as world,
        grpc.aio.insecure_channel(world.replicas[0].address) as direct,
    ):
        decode = pb_grpc.SpeculationServiceStub(direct).Decode
        tenants = []
        for token in (TOKEN, "guessed"):
            call: Any = decode(metadata=((HOST_KEY, "ipv4:10.0.0.7"), (TOKEN_KEY, token)))  # type: ignore[call-arg]
            await call.write(codec.encode_edge(lockstep()))
            await until(lambda: world.num_streams == [1])
            tenants.append(world.servers[0].engine._scheduler.streams[0].tenant)
            call.cancel()
            await until(lambda: world.num_streams == [0])
        assert tenants == ["ipv4:10.0.0.7", "ipv4:127.0.0.1"]


@dataclass
class Somebody:
    """A caller."""

    sent: tuple[tuple[str, str | bytes], ...]

    def peer(self) -> str:
        return "ipv4:10.1.2.3:4567"

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.sent


def test_metadata_is_passed_on_without_what_a_caller_may_not_say() -> None:
    caller = Somebody(
        (("user-agent", "x"), ("traceparent", "t"), (HOST_KEY, "ipv4:9.9.9.9"), ("k-bin", b"\x00"))
    )
    passed = forwarded(caller, TOKEN)
    assert passed == (
        ("traceparent", "t"),
        ("k-bin", b"\x00"),
        (HOST_KEY, "ipv4:10.1.2.3"),
        (TOKEN_KEY, TOKEN),
    )
    assert caller_host(Somebody(passed), TOKEN) == "ipv4:10.1.2.3"
    assert caller_host(caller, TOKEN) == caller_host(caller, None) == "ipv4:10.1.2.3"


async def test_an_edge_that_does_not_read_holds_the_replica_back() -> None:
    """How far a replica is ahead of a reader is bounded by the transport, not by the front's memory."""
    taken = 0

    async def pour(_: Any, context: Any) -> None:
        nonlocal taken
        await context.read()
        for _ in range(2000):
            await context.write(bytes(100_000))
            taken += 1

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(pour)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE_NAME, {"Decode": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    front = Front(Address(port=0), Router(60.0), TOKEN, grace_s=0.5)
    async with front, grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel:
        link = await front.attach(0, f"127.0.0.1:{port}")
        decode: Any = channel.stream_stream
        call = decode(f"/{SERVICE_NAME}/Decode")()
        await call.write(pb.DecodeRequest(open=pb.Open(session_id="s")).SerializeToString())
        before = -1
        while taken != before:  # until it stands still
            before = taken
            await asyncio.sleep(0.5)
        assert 0 < taken < 1000
        count = 0
        while isinstance(await call.read(), bytes):
            count += 1
        assert count == taken == 2000
        await link.close()
    await server.stop(None)
