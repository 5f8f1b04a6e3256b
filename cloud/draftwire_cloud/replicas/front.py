"""The address that edges know: the service's RPCs forwarded to replicas, health, and reflection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from draftwire_cloud.caller import forwarded
from draftwire_cloud.replicas.forwarding import Context, Ending, forward
from draftwire_cloud.replicas.link import Link
from draftwire_cloud.replicas.router import Router
from draftwire_cloud.server import OPTIONS, Address, bind
from draftwire_cloud.status import abort
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.errors import CloudUnavailableError
from draftwire_protocol.messages import SERVICE_NAME

_READY = {
    True: health_pb2.HealthCheckResponse.SERVING,
    False: health_pb2.HealthCheckResponse.NOT_SERVING,
}
#: The one RPC that belongs to a session; every other may be answered by any replica.
_DECODE = "Decode"
_DECODE_PATH = f"/{SERVICE_NAME}/{_DECODE}"

_Ask = Callable[[Context], Awaitable[Ending]]


class Front:
    """A running server in front of replicas; an async context manager.

    Args:
        address: where to listen.
        router: which replica a session goes to.
        token: what replicas know it by.
        grace_s: how long streams may take to end at shutdown, in seconds.
        clock: monotonic seconds.

    Raises:
        UserInputError: on entering, when the port is taken.
    """

    def __init__(
        self,
        address: Address,
        router: Router,
        token: str,
        grace_s: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._address = address
        self._router = router
        self._token = token
        self._grace_s = grace_s
        self._clock = clock
        self._links: dict[int, Link] = {}
        self._health = HealthServicer()

    async def __aenter__(self) -> Self:
        self._draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)
        self.port = bind(self._server, self._address)
        await self._server.start()
        await self._health.set("", _READY[True])
        await self.tell_health()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Not ready any more, then streams end as resumable."""
        await self._health.enter_graceful_shutdown()
        self._draining.set_result(None)
        await self._server.stop(self._grace_s)

    async def tell_health(self) -> None:
        """Ready while at least one replica is."""
        await self._health.set(SERVICE_NAME, _READY[bool(self._router.live)])

    async def attach(self, replica: int, address: str) -> Link:
        """A replica is ready: send it calls until the link is lost.

        Args:
            replica: its number.
            address: ``HOST:PORT``.
        """
        link = self._links[replica] = Link(replica, address, self._lost)
        self._router.up(replica)
        await self.tell_health()
        return link

    def _lost(self, link: Link) -> None:
        """Nobody is sent there any more, even before the call that found out has been answered."""
        if self._links.get(link.replica) is link:
            del self._links[link.replica]
            self._router.down(link.replica)

    def _handlers(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Every RPC of the service, in raw bytes; on the wire a single message is a stream of one."""
        methods = pb.DESCRIPTOR.services_by_name["SpeculationService"].methods
        asks: dict[str, _Ask] = {
            one.name: partial(self._anywhere, f"/{SERVICE_NAME}/{one.name}") for one in methods
        }
        asks[_DECODE] = self._in_its_place
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._answer, ask))
            for name, ask in asks.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)

    async def _answer(self, ask: _Ask, _: object, context: Context) -> None:
        """Answer one call as a replica does; where none can, so that the edge tries again."""
        try:
            ending = await ask(context)
        except CloudUnavailableError as error:
            await abort(context, error)
        if ending.broken:
            await abort(context, CloudUnavailableError(self._why_broken()))
        await _end(context, ending)

    async def _in_its_place(self, context: Context) -> Ending:
        """A stream of a session goes where the session is."""
        first = await context.read()
        place = self._router.open(_session_id(first), self._clock())
        try:
            return await self._forward(place.replica, _DECODE_PATH, _all(first, context), context)
        finally:
            self._router.close(place, self._clock())

    async def _anywhere(self, path: str, context: Context) -> Ending:
        """A question without a session goes to any replica, and to the next one when that is gone."""
        request = await context.read()
        while True:
            ending = await self._forward(self._router.any(), path, _only(request), context)
            if not ending.broken or ending.answered or self._draining.done():
                return ending

    async def _forward(
        self, replica: int, path: str, messages: AsyncIterator[bytes], context: Context
    ) -> Ending:
        link = self._links[replica]
        metadata = forwarded(context, self._token)
        ending = await forward(link, path, messages, context, metadata, self._draining)
        if ending.broken and not self._draining.done():
            link.lose()
        return ending

    def _why_broken(self) -> str:
        if self._draining.done():
            return "the server is shutting down; the session can be resumed"
        return "the replica of this session is gone; the session can be resumed"


def _session_id(first: Any) -> str:
    """Of a Decode stream's first message; what is none is for a replica to refuse."""
    try:
        return str(pb.DecodeRequest.FromString(first).open.session_id)
    except (DecodeError, TypeError):  # the latter where nothing was sent
        return ""


async def _all(first: Any, context: Context) -> AsyncIterator[bytes]:
    """What the edge sends, from its first message on."""
    message = first
    while isinstance(message, bytes):  # else the end
        yield message
        message = await context.read()


async def _only(request: Any) -> AsyncIterator[bytes]:
    """One message, which can be sent again."""
    if isinstance(request, bytes):  # else nothing was sent
        yield request


async def _end(context: Context, ending: Ending) -> None:
    """End the edge's call as the replica ended its own."""
    trailing = tuple(ending.trailing or ())
    if ending.code is grpc.StatusCode.OK:
        context.set_trailing_metadata(trailing)
    else:
        await context.abort(ending.code, ending.details, trailing)
