"""A TCP relay between edge and cloud that can freeze or cut the link while it runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Forwards bytes to ``target_port``; ``freeze`` holds them back, ``cut`` resets every connection."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def freeze(self) -> None:
        """Hold everything back from now on."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let it flow again."""
        self._flowing.set()

    def cut(self) -> None:
        """Reset all connections; new ones are let through."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def relaying(target_port: int) -> AsyncIterator[Relay]:
    """A running relay on a free port."""
    relay = Relay(target_port)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.thaw()
        relay.cut()
        await asyncio.sleep(0.05)
