"""A TCP relay whose two directions are the two directions of a link."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self, cast

from draftwire_edge.netem.address import Address
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.link import Link
from draftwire_edge.netem.pipe import End, Pipe, reset


class _Side(asyncio.Protocol):
    """One socket of a connection: bytes it receives go ``out``, bytes of ``back`` are written to it."""

    def __init__(self, connection: _Connection, out: Pipe, back: Pipe) -> None:
        self.transport: asyncio.Transport | None = None
        self._connection = connection
        self._out = out
        self._back = back

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out.source = self.transport
        self._back.attach(self.transport)
        if self._out.finished and self._back.finished:
            reset(self.transport)  # it was cut before it was there

    def data_received(self, data: bytes) -> None:
        self._out.push(data)

    def eof_received(self) -> bool:
        self._out.push_end(End.FINISHED)
        return True  # the other direction goes on

    def pause_writing(self) -> None:
        self._back.hold(full=True)

    def resume_writing(self) -> None:
        self._back.hold(full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._back.close()
        # Without an error it was closed by us, and what is under way to the other side still arrives.
        if exc is not None:
            self._out.push_end(End.RESET)
        self._connection.settle()


class _Connection:
    """An accepted socket, the one to the target, and a pipe each way."""

    def __init__(self, relay: Relay) -> None:
        up, down = relay.link.open(asyncio.get_running_loop().time())
        self.up = Pipe(up, relay.link, self.settle)
        self.down = Pipe(down, relay.link, self.settle)
        self.near = _Side(self, self.up, self.down)
        self.far = _Side(self, self.down, self.up)
        self.over = asyncio.get_running_loop().create_future()
        self._relay = relay
        self._dialling = asyncio.create_task(self._dial(relay.target))

    async def _dial(self, target: Address) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, target.host, target.port)
        except (OSError, UnicodeError):  # the latter: what cannot be a host's name
            self.cut()

    def cut(self) -> None:
        """Reset both sockets; nothing more passes."""
        self.up.close()
        self.down.close()
        self._dialling.cancel()
        reset(self.near.transport)
        reset(self.far.transport)
        self.settle()

    def flush(self) -> None:
        """Let out what is due."""
        self.up.flush()
        self.down.flush()

    def settle(self) -> None:
        """Close what has nothing left to do."""
        sides = (self.near.transport, self.far.transport)
        if self.up.finished and self.down.finished:
            for transport in sides:
                if transport is not None:
                    transport.close()
            if sides == (None, None) and not self.over.done():
                self.over.set_result(None)
                self._relay.forget(self)


class Relay:
    """Forwards TCP connections to ``target`` over an emulated link; an async context manager.

    Attributes:
        target: where new connections go; may be changed at any moment.
        link: what the link is like; ``relay.conditions`` is short for ``relay.link.conditions``.
        port: where it listens, once entered.

    Args:
        target: host and port.
        conditions: to begin with; may be replaced at any moment.
        seed: same seed, same arrivals, same times.
        listen: where to listen; port 0 for a free one.

    Raises:
        OSError: when entered, where it cannot listen.
    """

    def __init__(
        self,
        target: tuple[str, int],
        conditions: Conditions | None = None,
        seed: int = 0,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.target = Address(*target)
        self.link = Link(conditions or Conditions(), seed)
        self.port = 0
        self._listen = Address(*listen)
        self._open: set[_Connection] = set()
        self._past_bytes = (0, 0)

    @property
    def conditions(self) -> Conditions:
        """What the link is like now."""
        return self.link.conditions

    @conditions.setter
    def conditions(self, conditions: Conditions) -> None:
        self.link.conditions = conditions

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self._listen.host, self.port)

    @property
    def connections(self) -> int:
        """How many were accepted so far."""
        return self.link.connections

    @property
    def passed_bytes(self) -> tuple[int, int]:
        """Bytes handed on so far, to the target and from it."""
        up, down = self._past_bytes
        return (
            up + sum(one.up.passed_bytes for one in self._open),
            down + sum(one.down.passed_bytes for one in self._open),
        )

    def freeze(self) -> None:
        """Hold everything back from now on; new connections are accepted and held too."""
        self.link.frozen = True

    def thaw(self) -> None:
        """Let it flow again; what is overdue leaves at once."""
        self.link.frozen = False
        for connection in list(self._open):
            connection.flush()

    def cut(self) -> None:
        """Reset all connections; new ones are let through."""
        for connection in list(self._open):
            connection.cut()

    def forget(self, connection: _Connection) -> None:
        """A connection is over."""
        self._past_bytes = (
            self._past_bytes[0] + connection.up.passed_bytes,
            self._past_bytes[1] + connection.down.passed_bytes,
        )
        self._open.discard(connection)

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, self._listen.host, self._listen.port
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and reset what is open."""
        self._server.close()
        ending = [connection.over for connection in self._open]
        self.cut()
        if ending:
            await asyncio.wait(ending)

    def _accept(self) -> _Side:
        connection = _Connection(self)
        self._open.add(connection)
        return connection.near
