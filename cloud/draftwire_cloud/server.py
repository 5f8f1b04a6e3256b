"""The gRPC server: service, health, reflection, and a shutdown that loses nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from draftwire_cloud.engine_loop import EngineLimits, EngineLoop
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.rpc_counts import RpcCounter
from draftwire_cloud.service import SpeculationService
from draftwire_protocol._pb import speculation_pb2_grpc as pb_grpc
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import MAX_MESSAGE_BYTES, SERVICE_NAME

_log = logging.getLogger(__name__)

_SERVING = health_pb2.HealthCheckResponse.SERVING

#: Keepalive must agree with the edge's: it pings every 20 s, so pings that often are allowed here.
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 5),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 50051


class CloudServer:
    """A running service around one target; an async context manager.

    Args:
        loaded: the target, its vocabulary and its card.
        address: where to listen.
        limits: what the operator allows.
        grace_s: how long streams may take to end at shutdown, in seconds.
        front_token: what a front shows that calls for other hosts; None where there is no front.
        rpcs: counts RPCs; None where nobody asks.

    Raises:
        UserInputError: on entering, when the port is taken.
    """

    def __init__(
        self,
        loaded: LoadedTarget,
        address: Address,
        limits: EngineLimits,
        grace_s: float = 5.0,
        front_token: str | None = None,
        rpcs: RpcCounter | None = None,
    ) -> None:
        self._loaded = loaded
        self._address = address
        self._limits = limits
        self._grace_s = grace_s
        self._front_token = front_token
        self._interceptors = () if rpcs is None else (rpcs,)
        self._health = HealthServicer()

    async def __aenter__(self) -> Self:
        self.engine = EngineLoop(self._loaded.target, self._loaded.vocabulary, self._limits)
        loaded = self._loaded
        self._service = SpeculationService(
            self.engine, loaded.card, loaded.vocabulary, loaded.pack_tokenizer, self._front_token
        )
        self._server = grpc.aio.server(interceptors=self._interceptors, options=OPTIONS)
        pb_grpc.add_SpeculationServiceServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)
        self.port = bind(self._server, self._address)
        await self._server.start()
        self._loop = asyncio.create_task(self.engine.run())
        self._loop.add_done_callback(self._engine_ended)
        await self._health.set("", _SERVING)
        await self._health.set(SERVICE_NAME, _SERVING)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Not ready any more, then streams end as resumable, then the torch thread stops."""
        await self._health.enter_graceful_shutdown()
        self._service.drain()
        await self._server.stop(self._grace_s)
        self._loop.cancel()
        await asyncio.wait({self._loop})

    def _engine_ended(self, loop: asyncio.Task[None]) -> None:
        """A dead engine answers nobody: say so to every stream, and to whoever sends new ones."""
        if not loop.cancelled():
            _log.error("the engine stopped", exc_info=loop.exception())
            self._service.fail()
            self._not_ready = asyncio.create_task(self._health.enter_graceful_shutdown())

    async def serve_until_signal(self) -> str:
        """Wait for SIGTERM or SIGINT; returns its name. Raises what ended the engine, should it end."""
        stopped = stop_signal()
        either: set[asyncio.Future[Any]] = {stopped, self._loop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._loop.done():
            self._loop.result()
        return await stopped

    async def engine_ended(self) -> None:
        """Wait until the engine ends, which only a fault does."""
        await asyncio.wait({self._loop})


def bind(server: grpc.aio.Server, address: Address) -> int:
    """Listen; returns the port.

    Args:
        server: not started yet.
        address: where.

    Raises:
        UserInputError: somebody else listens there.
    """
    where = f"{address.host}:{address.port}"
    try:
        return server.add_insecure_port(where)
    except RuntimeError as error:
        raise UserInputError(
            "--port", f"cannot listen on {where}", "Choose another --port or stop what uses it"
        ) from error


def stop_signal() -> asyncio.Future[str]:
    """Resolved with the name of the first SIGTERM or SIGINT from now on."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _resolve, stopped, number.name)
    return stopped


def _resolve(future: asyncio.Future[str], name: str) -> None:
    if not future.done():
        future.set_result(name)
