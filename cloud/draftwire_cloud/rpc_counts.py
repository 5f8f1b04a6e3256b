"""Counts the service's RPCs and their bytes from outside: an interceptor, there only when somebody asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.messages import SERVICE_NAME

_DECODE = "Decode"


def _of_methods() -> Counter[str]:
    """0 for every method of the service: a series that is there from the start has a rate at once."""
    methods = pb.DESCRIPTOR.services_by_name["SpeculationService"].methods
    return Counter({one.name: 0 for one in methods})


@dataclass(slots=True)
class RpcCounts:
    """RPCs since the server started."""

    #: By method.
    begun: Counter[str] = field(default_factory=_of_methods)
    received_bytes: Counter[str] = field(default_factory=_of_methods)
    sent_bytes: Counter[str] = field(default_factory=_of_methods)
    #: By the status' name; those that ended well are not here.
    errors: Counter[str] = field(default_factory=Counter)
    #: Decode streams under way, those not let in yet included.
    open_streams: int = 0


class RpcCounter(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Counts what passes; other services, such as health, are left alone."""

    def __init__(self) -> None:
        self.counts = RpcCounts()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The handler of this call, with counting around it."""
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.rpartition("/")
        # Without a handler there is no such method: names that callers make up are never kept.
        if handler is None or service != f"/{SERVICE_NAME}":
            return handler
        self.counts.begun[method] += 1
        return self._counting(handler, method)

    def _counting(self, handler: Any, method: str) -> Any:
        """The same handler, counting calls' ends and the bytes of messages."""
        sides = ("unary", "stream")
        kind = f"{sides[handler.request_streaming]}_{sides[handler.response_streaming]}"
        around = self._stream if handler.response_streaming else self._single
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            partial(around, getattr(handler, kind), method),
            partial(_read, handler.request_deserializer, self.counts.received_bytes, method),
            partial(_write, handler.response_serializer, self.counts.sent_bytes, method),
        )

    async def _single(self, answer: Callable[..., Any], method: str, request: Any, context: Any) -> Any:
        with self._ending(method, context):
            return await answer(request, context)

    async def _stream(
        self, answer: Callable[..., Any], method: str, request: Any, context: Any
    ) -> AsyncIterator[Any]:
        with self._ending(method, context):
            async with aclosing(answer(request, context)) as answers:
                async for one in answers:
                    yield one

    @contextmanager
    def _ending(self, method: str, context: Any) -> Iterator[None]:
        """Note how a call ends."""
        self.counts.open_streams += method == _DECODE
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.counts.errors[grpc.StatusCode.CANCELLED.name] += 1
            raise
        except BaseException:
            # Of a call that was not aborted on purpose the context knows no code; gRPC answers UNKNOWN.
            code = context.code()
            known = isinstance(code, grpc.StatusCode)
            self.counts.errors[code.name if known else grpc.StatusCode.UNKNOWN.name] += 1
            raise
        finally:
            self.counts.open_streams -= method == _DECODE


def _read(decode: Callable[[bytes], Any], sizes: Counter[str], method: str, data: bytes) -> Any:
    sizes[method] += len(data)
    return decode(data)


def _write(encode: Callable[[Any], bytes], sizes: Counter[str], method: str, message: Any) -> bytes:
    data = encode(message)
    sizes[method] += len(data)
    return data
