"""The front's connection to one replica, as long as that replica lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from draftwire_protocol.messages import MAX_MESSAGE_BYTES

#: As an edge's, but no subchannel is shared with a connection to what had this port before.
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Link:
    """A channel to a replica that can be lost once, and then stays lost.

    Args:
        replica: its number.
        address: ``HOST:PORT``.
        on_lost: called at once when it is lost, before anybody who waits for that goes on.
    """

    def __init__(self, replica: int, address: str, on_lost: Callable[[Link], None]) -> None:
        self.replica = replica
        self._on_lost = on_lost
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    def call(self, path: str, **how: Any) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        """Begin a call in raw bytes; on the wire a single message is a stream of one.

        Args:
            path: ``/package.Service/Method``.
            how: metadata and timeout.
        """
        return self._channel.stream_stream(path)(**how)  # type: ignore[call-arg]  # read/write style

    def lose(self) -> None:
        """It does not answer any more."""
        if not self.lost.done():
            self.lost.set_result(None)
            self._on_lost(self)

    async def close(self) -> None:
        """End what is left of it."""
        self.lose()
        await self._channel.close(None)
