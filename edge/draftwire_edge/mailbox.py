"""The incoming half of a Decode stream, so that waiting for it and for the drafter go together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftwire_edge.channel import DecodeStream
from draftwire_protocol.messages import CloudMessage

#: Most messages, and bytes of them, that wait to be asked for: minutes of a cloud's writing.
MOST_KEPT = 4096
MOST_KEPT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, and when it came: whoever takes it may have been busy meanwhile."""

    message: CloudMessage
    at_s: float
    #: Its payload.
    num_bytes: int = 0


class Mailbox:
    """Reads messages as they come, so that their times are right, and keeps them until they are asked for.

    While the most are kept it reads no further: HTTP/2's flow control then holds back a cloud that floods us.
    What is read later than it came has the time at which it was read.

    Args:
        stream: whose messages; nobody else may read from it.
        clock: monotonic seconds.
        most: messages to keep.
        most_bytes: bytes to keep; one message may exceed them.
    """

    def __init__(
        self,
        stream: DecodeStream,
        clock: Callable[[], float],
        most: int = MOST_KEPT,
        most_bytes: int = MOST_KEPT_BYTES,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._room_for, self._room_bytes = most, most_bytes
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._kept: asyncio.Queue[Arrival | BaseException] = asyncio.Queue()
        self._next: asyncio.Task[Arrival | BaseException] | None = None
        self._reader = asyncio.ensure_future(self._read_all())

    async def _read_all(self) -> None:
        try:
            while await self._has_room.wait():
                bytes_before = self._stream.bytes_down
                message = await self._stream.receive()
                arrival = Arrival(message, self._clock(), self._stream.bytes_down - bytes_before)
                self._make_room(-1, -arrival.num_bytes)
                self._kept.put_nowait(arrival)
        except BaseException as error:  # raised again where a message is asked for
            self._kept.put_nowait(error)
            if not isinstance(error, Exception):
                raise

    async def message_or(self, other: asyncio.Future[Any] | None) -> Arrival | None:
        """The next message; None when ``other`` is done first.

        Raises:
            DraftwireError: as the status the stream ended with says.
            CancelledError: the stream was cancelled.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._kept.get())
        await asyncio.wait(
            [self._next] if other is None else [self._next, other], return_when=asyncio.FIRST_COMPLETED
        )
        if not self._next.done():
            return None
        arrival, self._next = self._next.result(), None
        if isinstance(arrival, BaseException):
            raise arrival
        self._make_room(1, arrival.num_bytes)
        return arrival

    def _make_room(self, messages: int, num_bytes: int) -> None:
        """So much more room, or less."""
        self._room_for += messages
        self._room_bytes += num_bytes
        if self._room_for > 0 and self._room_bytes > 0:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def close(self) -> None:
        """Stop reading."""
        tasks = [task for task in (self._reader, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
