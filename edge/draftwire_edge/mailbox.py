"""The incoming half of a Decode stream, so that waiting for it and for the drafter go together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftwire_edge.channel import DecodeStream
from draftwire_protocol.messages import CloudMessage


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message, and when it came: whoever takes it may have been busy meanwhile."""

    message: CloudMessage
    at_s: float


class Mailbox:
    """Reads messages as they come and keeps them, as many as the cloud sends, until they are asked for.

    Args:
        stream: whose messages; nobody else may read from it.
        clock: monotonic seconds.
    """

    def __init__(self, stream: DecodeStream, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._kept: asyncio.Queue[Arrival | BaseException] = asyncio.Queue()
        self._next: asyncio.Task[Arrival | BaseException] | None = None
        self._reader = asyncio.ensure_future(self._read_all())

    async def _read_all(self) -> None:
        try:
            while True:
                message = await self._stream.receive()
                self._kept.put_nowait(Arrival(message, self._clock()))
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
        return arrival

    async def close(self) -> None:
        """Stop reading."""
        tasks = [task for task in (self._reader, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
