"""The incoming half of a Decode stream, so that waiting for it and for the drafter go together."""

from __future__ import annotations

import asyncio
from typing import Any

from draftwire_edge.channel import DecodeStream
from draftwire_protocol.messages import CloudMessage


class Mailbox:
    """Reads one message ahead.

    Args:
        stream: whose messages; nobody else may read from it.
    """

    def __init__(self, stream: DecodeStream) -> None:
        self._stream = stream
        self._next: asyncio.Task[CloudMessage] | None = None

    async def message_or(self, other: asyncio.Future[Any] | None) -> CloudMessage | None:
        """The next message; None when ``other`` is done first.

        Raises:
            DraftwireError: as the status the stream ended with says.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._stream.receive())
        await asyncio.wait(
            [self._next] if other is None else [self._next, other], return_when=asyncio.FIRST_COMPLETED
        )
        if not self._next.done():
            return None
        message, self._next = self._next.result(), None
        return message

    async def close(self) -> None:
        """Stop reading."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
