"""The relay on real sockets: nothing early, nothing lost, nothing out of order. No upper bounds on time."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from draftwire_edge.netem import Conditions, Profile, Relay, Step, precise_event_loop
from draftwire_edge.netem.command import play
from draftwire_edge.netem.delay_line import most_held_bytes

WILD = Conditions(rtt_ms=4, jitter_ms=6, rate_kbit=80_000, loss=0.002)
#: What asyncio reads at once.
LARGEST_READ = 256 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Echo:
    """Echoes every connection; counts the bytes and remembers the writers."""

    port: int = 0
    received: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    reading: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            await self.reading.wait()
            while data := await reader.read(1 << 16):
                self.received += len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    echo.reading.set()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    async with server:
        yield echo
        for writer in echo.writers:
            writer.transport.abort()


@asynccontextmanager
async def client(relay: Relay) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def round_trip_ms(streams: Streams) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    streams[1].write(b"ping")
    assert await streams[0].readexactly(4) == b"ping"
    return (loop.time() - began) * 1000


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nothing says when
        await asyncio.sleep(0.001)


def held_up(relay: Relay) -> int:
    """Bytes that wait on their way to the target, over all connections."""
    return sum(one.up._held_bytes for one in relay._open)


def held(relay: Relay, size: int) -> bool:
    return held_up(relay) == size


async def test_a_round_trip_is_never_shorter_than_asked_and_follows_changes() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay, client(relay) as streams:
        for rtt_ms in (0.0, 40.0, 5.0):
            relay.conditions = Conditions(rtt_ms=rtt_ms)
            for _ in range(4):
                assert await round_trip_ms(streams) >= rtt_ms


async def test_a_new_connection_pays_for_its_handshake() -> None:
    async with (
        echoing() as echo,
        Relay(("127.0.0.1", echo.port), Conditions(rtt_ms=30)) as relay,
        client(relay) as streams,
    ):
        assert await round_trip_ms(streams) >= 60.0
        assert relay.connections == 1


@pytest.mark.parametrize("loop_factory", [precise_event_loop, asyncio.new_event_loop])
def test_bytes_come_through_intact_both_ways(loop_factory: object) -> None:
    async def go() -> None:
        data = random.Random(0).randbytes(600_000)
        async with echoing() as echo, Relay(("127.0.0.1", echo.port), WILD, seed=5) as relay:
            async with client(relay) as one, client(relay) as two:
                back = await asyncio.gather(_through(one, data), _through(two, data[::-1]))
                assert list(back) == [data, data[::-1]]
            assert relay.passed_bytes == (1_200_000, 1_200_000)

    with asyncio.Runner(loop_factory=loop_factory) as runner:  # type: ignore[arg-type]
        runner.run(go())


async def _through(streams: Streams, data: bytes) -> bytes:
    """Send all in ragged writes and end; read all that comes back."""
    reader, writer = streams

    async def send() -> None:
        rng, at = random.Random(len(data)), 0
        while at < len(data):
            size = rng.randint(1, 40_000)
            writer.write(data[at : at + size])
            await writer.drain()
            at += size
        writer.write_eof()

    _, back = await asyncio.gather(send(), reader.read(-1))
    return back


async def test_changing_all_the_time_loses_nothing() -> None:
    data = random.Random(1).randbytes(400_000)
    async with echoing() as echo, Relay(("127.0.0.1", echo.port), WILD) as relay, client(relay) as streams:

        async def change() -> None:
            rng = random.Random(2)
            while True:
                relay.conditions = Conditions(
                    rng.uniform(0, 20), rng.uniform(0, 10), rng.choice([None, 50_000.0])
                )
                (relay.freeze if rng.random() < 0.2 else relay.thaw)()
                await asyncio.sleep(0.004)

        changing = asyncio.create_task(change())
        assert await _through(streams, data) == data
        changing.cancel()


async def test_reading_goes_on_while_earlier_bytes_wait() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay, client(relay) as (reader, writer):
        relay.freeze()
        for number in range(20):
            writer.write(bytes([number]))
            await eventually(partial(held, relay, number + 1))
        relay.thaw()
        assert await reader.readexactly(20) == bytes(range(20))


async def test_freeze_holds_and_thaw_lets_go() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay, client(relay) as streams:
        await round_trip_ms(streams)
        relay.freeze()
        streams[1].write(b"ping")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams[0].readexactly(4), 0.1)
        assert echo.received == 4
        relay.thaw()
        assert await streams[0].readexactly(4) == b"ping"


async def test_cut_resets_all_connections_and_lets_new_ones_through() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay:
        async with client(relay) as one, client(relay) as two:
            await round_trip_ms(one)
            await round_trip_ms(two)
            relay.cut()
            for reader, _ in (one, two):
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
        async with client(relay) as three:
            await round_trip_ms(three)
        assert relay.connections == 3


async def test_cut_before_the_target_answered() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay, client(relay) as (reader, _):
        await eventually(lambda: relay.connections > 0)
        relay.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)


async def test_nobody_at_the_target_resets_and_a_new_target_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    async with echoing() as echo, Relay(("127.0.0.1", nobody)) as relay:
        async with client(relay) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        relay.target = relay.target._replace(port=echo.port)
        async with client(relay) as streams:
            await round_trip_ms(streams)


async def test_a_reset_reaches_the_other_side() -> None:
    async with (
        echoing() as echo,
        Relay(("127.0.0.1", echo.port), Conditions(rtt_ms=10)) as relay,
        client(relay) as streams,
    ):
        await round_trip_ms(streams)
        sock = echo.writers[0].get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        echo.writers[0].transport.abort()
        with pytest.raises(ConnectionResetError):
            await streams[0].readexactly(1)


async def test_half_closed_connections_still_answer() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port), Conditions(rtt_ms=10)) as relay:
        async with client(relay) as (reader, writer):
            writer.write(b"last words")
            writer.write_eof()
            assert await reader.read(-1) == b"last words"
        await eventually(lambda: not relay._open)


async def test_memory_is_bounded_while_the_link_is_frozen() -> None:
    conditions = Conditions(rate_kbit=8_000)
    async with (
        echoing() as echo,
        Relay(("127.0.0.1", echo.port), conditions) as relay,
        client(relay) as (reader, writer),
    ):
        relay.freeze()
        writer.write(bytes(4_000_000))
        most = most_held_bytes(conditions)
        await eventually(lambda: held_up(relay) > most)
        await asyncio.sleep(0.05)
        assert held_up(relay) <= most + LARGEST_READ
        relay.conditions = Conditions()
        relay.thaw()
        assert await reader.readexactly(4_000_000) == bytes(4_000_000)


async def test_a_slow_reader_slows_the_sender() -> None:
    data, most = bytes(60_000_000), most_held_bytes(Conditions())
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay:
        echo.reading.clear()
        async with client(relay) as (reader, writer):
            writer.write(data)
            await eventually(lambda: held_up(relay) > most)
            await asyncio.sleep(0.05)
            assert held_up(relay) <= most + LARGEST_READ
            echo.reading.set()
            assert await reader.readexactly(len(data)) == data


async def test_small_writes_are_not_collected() -> None:
    async with echoing() as echo, Relay(("127.0.0.1", echo.port)) as relay, client(relay) as streams:
        await round_trip_ms(streams)
        (connection,) = relay._open
        for side in (connection.near, connection.far):
            assert side.transport is not None
            sock = side.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_profile_changes_a_running_relay() -> None:
    steps = (Step(0.05, Conditions(rtt_ms=1)), Step(0.05, Conditions(rtt_ms=2), held=True))
    seen: list[tuple[float, float, bool]] = []
    async with Relay(("127.0.0.1", 1)) as relay:
        done = asyncio.Event()

        def note(at_s: float, step: Step) -> None:
            assert relay.conditions == step.conditions
            seen.append((round(at_s, 3), relay.conditions.rtt_ms, relay.link.frozen))
            if len(seen) == 4:
                done.set()

        playing = asyncio.create_task(play(relay, Profile("short", "", steps), note))
        await done.wait()
        playing.cancel()
    assert seen == [(0.0, 1, False), (0.05, 2, True), (0.1, 1, False), (0.15, 2, True)]
