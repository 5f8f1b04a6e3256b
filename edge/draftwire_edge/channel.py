"""The connection to the cloud: one channel, one stream a generation, gRPC errors mapped once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from draftwire_protocol import codec
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol._pb import speculation_pb2_grpc as pb_grpc
from draftwire_protocol.errors import CloudUnavailableError, DraftwireError, error_from_status
from draftwire_protocol.messages import MAX_MESSAGE_BYTES, CloudMessage, EdgeMessage, ModelCard

#: Pings every 20 s keep a connection alive through NATs; the server must allow them that often.
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

T = TypeVar("T")
#: Key of the details that the service attaches to every status it sends on purpose.
_DETAILS_KEY = "grpc-status-details-bin"
#: Statuses that the transport makes up when a connection breaks.
_BROKEN = frozenset({"UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "OK"})
_Call = grpc.aio.StreamStreamCall[pb.DecodeRequest, pb.DecodeResponse]
#: What grpc.aio raises when one writes to a call that has ended.
_CALL_IS_OVER = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


def _error_of(code: grpc.StatusCode, message: str | None, metadata: Container[Any] | None) -> DraftwireError:
    """Our exception for a status: the service's own, or the transport's word for a broken connection."""
    on_purpose = metadata is not None and _DETAILS_KEY in metadata
    if code.name in _BROKEN and not on_purpose:
        return CloudUnavailableError(message or "the stream ended before the text was finished")
    return error_from_status(code.name, message or code.name)


async def _mapped(call: Awaitable[T]) -> T:
    """Await a gRPC operation; its errors become ours."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _error_of(error.code(), error.details(), error.trailing_metadata()) from error
    except grpc.aio.UsageError as error:
        raise CloudUnavailableError(str(error)) from error


class DecodeStream:
    """One Decode call; counts the payload bytes that pass."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self.bytes_up = 0
        self.bytes_down = 0

    async def send(self, message: EdgeMessage) -> None:
        """Send one message; nobody needs it any more where the cloud has ended the stream in good order.

        Raises:
            DraftwireError: as the status the stream ended with says.
        """
        request = codec.encode_edge(message)
        self.bytes_up += request.ByteSize()
        try:
            await self._call.write(request)
        except _CALL_IS_OVER as error:
            if await self._call.code() is not grpc.StatusCode.OK:
                raise await self._reason() from error

    async def receive(self) -> CloudMessage:
        """The next message.

        Raises:
            DraftwireError: as the status the stream ended with says.
        """
        response = await _mapped(self._call.read())
        if not isinstance(response, pb.DecodeResponse):
            raise await self._reason()
        self.bytes_down += response.ByteSize()
        return codec.decode_cloud(response)

    async def _reason(self) -> DraftwireError:
        """Why the stream is over."""
        call = self._call
        return _error_of(await call.code(), await call.details(), await call.trailing_metadata())

    def cancel(self) -> None:
        """End the call now."""
        self._call.cancel()


class CloudChannel:
    """A long-lived channel to one service; an async context manager.

    Args:
        address: ``HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self.address, options=OPTIONS)
        self._stub = pb_grpc.SpeculationServiceStub(self._channel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close(None)

    async def get_model(
        self, *, piece_start: int = 0, piece_count: int = 0, timeout_s: float = 10.0
    ) -> ModelCard:
        """The model card, with the chat template and the bytes of some ids.

        Raises:
            CloudUnavailableError: nothing answers there.
        """
        request = pb.GetModelRequest(piece_start=piece_start, piece_count=piece_count, chat_template=True)
        return codec.decode_card(await _mapped(self._stub.GetModel(request, timeout=timeout_s)))

    async def get_tokenizer(self, *, max_bytes: int, timeout_s: float = 60.0) -> bytes:
        """The target's tokenizer as it travels; empty where the cloud has none to give.

        Raises:
            CloudUnavailableError: nothing answers there.
            DraftwireError: there is more of it than ``max_bytes``.
        """
        call = self._stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=timeout_s)
        packed = bytearray()
        try:
            while isinstance(part := await _mapped(call.read()), pb.GetTokenizerResponse):
                packed += part.data
                if len(packed) > max_bytes:
                    call.cancel()
                    break
        except DraftwireError:
            if await call.code() is grpc.StatusCode.UNIMPLEMENTED:
                return b""  # a cloud older than the question
            raise
        if len(packed) > max_bytes:
            raise DraftwireError(f"the cloud's tokenizer has more than {max_bytes:,} bytes")
        return bytes(packed)

    def decode(self) -> DecodeStream:
        """A new Decode stream."""
        return DecodeStream(self._stub.Decode())  # type: ignore[call-arg]  # the stubs miss the read/write style
