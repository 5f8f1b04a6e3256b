"""One call, copied from an edge to a replica and back, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from draftwire_cloud.caller import Metadata
from draftwire_cloud.replicas.link import Link
from draftwire_cloud.status import DETAILS_KEY

Context = grpc.aio.ServicerContext[bytes, bytes]
T = TypeVar("T")
_Call = grpc.aio.StreamStreamCall[bytes, bytes]

#: What grpc.aio raises when one writes to a call that has ended; its status comes down the other way.
_CALL_IS_OVER = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a replica ended a call."""

    code: grpc.StatusCode
    details: str
    trailing: Any
    #: Whether anything of its answer has gone out.
    answered: bool

    @property
    def broken(self) -> bool:
        """Whether the connection ended it; a replica that says UNAVAILABLE itself attaches details."""
        return self.code is grpc.StatusCode.UNAVAILABLE and DETAILS_KEY not in dict(self.trailing or ())


class _Down:
    """A replica's answer on its way to the edge."""

    def __init__(self, call: _Call, context: Context) -> None:
        self._call = call
        self._context = context
        self.answered = False

    async def copy(self) -> Ending:
        """Pass on what comes, each message only when the one before was taken; returns how it ended."""
        call, context = self._call, self._context
        try:
            if initial := tuple(await call.initial_metadata()):
                await context.send_initial_metadata(initial)
            while isinstance(message := await call.read(), bytes):  # else the end
                self.answered = True
                await context.write(message)
        except grpc.aio.AioRpcError:
            pass  # asked for below
        return Ending(
            await call.code(), await call.details() or "", await call.trailing_metadata(), self.answered
        )


async def _copy_up(messages: AsyncIterator[bytes], call: _Call) -> None:
    """Pass on what the edge sends, each message only when the one before was taken."""
    try:
        async for message in messages:
            await call.write(message)
        await call.done_writing()
    except _CALL_IS_OVER:
        pass


async def forward(
    link: Link,
    path: str,
    messages: AsyncIterator[bytes],
    context: Context,
    metadata: Metadata,
    interrupted: asyncio.Future[None],
) -> Ending:
    """Copy one call both ways until the replica ends it.

    Args:
        link: to the replica.
        path: ``/package.Service/Method``.
        messages: what the edge sends.
        context: the edge's call.
        metadata: for the replica.
        interrupted: ends it early when resolved.

    Returns:
        How it ended; broken where it was interrupted, or the replica lost.
    """
    call = link.call(path, metadata=metadata, timeout=context.time_remaining())
    down = _Down(call, context)
    async with _running(_copy_up(messages, call)), _running(down.copy()) as ending:
        try:
            waiting: set[asyncio.Future[Any]] = {ending, link.lost, interrupted}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return ending.result()
            return Ending(grpc.StatusCode.UNAVAILABLE, "", None, down.answered)
        finally:
            call.cancel()


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that is over afterwards."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at: where it matters, whoever awaits the task has it
