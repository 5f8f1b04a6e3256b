"""Messages keep the time at which they came, and a cloud that floods the edge is held back."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from draftwire_edge.channel import DecodeStream
from draftwire_edge.mailbox import MOST_KEPT, Mailbox
from draftwire_protocol.errors import CloudUnavailableError
from draftwire_protocol.messages import CloudMessage, Mode, Verdict


class Flood:
    """A stream that has a message whenever it is asked, until it ends."""

    def __init__(self, count: int = 10**9, num_bytes: int = 20) -> None:
        self.read = 0
        self.bytes_down = 0
        self._count, self._num_bytes = count, num_bytes

    async def receive(self) -> CloudMessage:
        await asyncio.sleep(0)
        if self.read >= self._count:
            raise CloudUnavailableError("the end")
        self.read += 1
        self.bytes_down += self._num_bytes
        return Verdict(0, self.read, 0, (1,), Mode.CLOUD)


class Clock:
    """Tells how many messages were read when it was asked."""

    def __init__(self, stream: Flood) -> None:
        self._stream = stream

    def __call__(self) -> float:
        return float(self._stream.read)


def mailbox_of(stream: Flood, **limits: int) -> Mailbox:
    return Mailbox(cast("DecodeStream", stream), Clock(stream), **limits)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_flood_is_read_up_to_the_bound_and_no_further() -> None:
    stream = Flood()
    mailbox = mailbox_of(stream)
    await turns(4 * MOST_KEPT)
    assert stream.read == MOST_KEPT
    await mailbox.close()


@pytest.mark.parametrize(("num_bytes", "kept"), [(400, 3), (5000, 1), (1000, 1), (999, 2)])
async def test_large_messages_fill_it_sooner(num_bytes: int, kept: int) -> None:
    stream = Flood(num_bytes=num_bytes)
    mailbox = mailbox_of(stream, most_bytes=1000)
    await turns(50)
    assert stream.read == kept
    await mailbox.close()


async def test_a_slow_reader_gets_the_times_of_arrival_and_every_message_in_order() -> None:
    stream = Flood(count=50)
    mailbox = mailbox_of(stream, most=20)
    await turns(100)
    arrivals = []
    for _ in range(20):  # taken at one moment, long after they came
        arrival = await mailbox.message_or(None)
        assert arrival is not None
        arrivals.append(arrival)
    assert [one.at_s for one in arrivals] == [float(place) for place in range(1, 21)]
    while len(arrivals) < 50:
        arrival = await mailbox.message_or(None)
        assert arrival is not None
        arrivals.append(arrival)
    assert [cast("Verdict", one.message).start for one in arrivals] == list(range(1, 51))
    with pytest.raises(CloudUnavailableError, match="the end"):
        await mailbox.message_or(None)
    await mailbox.close()


async def test_taking_one_lets_one_in_also_while_something_else_is_waited_for() -> None:
    stream = Flood()
    mailbox = mailbox_of(stream, most=5)
    await turns(50)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    # The drafter was first again and again: what waits is still one message, not one more each time.
    for _ in range(3):
        await mailbox.message_or(done)
        await turns(20)
    taken = stream.read - 5
    assert 0 <= taken <= 3
    await mailbox.message_or(None)
    await turns(20)
    assert stream.read == 5 + taken + 1
    await mailbox.close()


async def test_it_closes_while_it_is_full() -> None:
    mailbox = mailbox_of(Flood(), most=2)
    await turns(20)
    await asyncio.wait_for(mailbox.close(), timeout=5)
