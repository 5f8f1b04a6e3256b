"""The servicer: protobuf in, protobuf out; everything else is the engine loop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cache
from typing import Any

import grpc

from draftwire_cloud.caller import caller_host
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine_loop import EngineLoop
from draftwire_cloud.scheduler import Stream
from draftwire_cloud.session import Vocabulary
from draftwire_cloud.status import abort
from draftwire_protocol import codec
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol._pb import speculation_pb2_grpc as pb_grpc
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DraftwireError,
    ModelMismatchError,
    ProtocolError,
)
from draftwire_protocol.messages import CloudMessage, Finished, ModelCard, Open

#: Of a tokenizer; well below the largest message.
_PART_BYTES = 1 << 20

Outbox = asyncio.Queue[CloudMessage | DraftwireError]


class SpeculationService(pb_grpc.SpeculationServiceServicer):
    """GetModel and Decode.

    Args:
        engine: runs the target.
        card: what GetModel answers.
        vocabulary: bytes of the ids, for the edge's comparison.
        pack_tokenizer: makes what GetTokenizer answers, once.
        front_token: what a front shows that calls for other hosts; None where there is no front.
    """

    def __init__(
        self,
        engine: EngineLoop,
        card: ModelCard,
        vocabulary: Vocabulary,
        pack_tokenizer: Callable[[], bytes] = bytes,
        front_token: str | None = None,
    ) -> None:
        self._engine = engine
        self._card = card
        self._vocabulary = vocabulary
        self._pack_tokenizer = cache(pack_tokenizer)
        self._front_token = front_token
        self._outboxes: set[Outbox] = set()
        self._why_ended: Callable[[], DraftwireError] | None = None

    async def GetModel(  # noqa: N802  # named by the proto
        self,
        request: pb.GetModelRequest,
        context: Any,  # noqa: ARG002  # the generated signature
    ) -> pb.GetModelResponse:
        """The model card, and the bytes of some ids if asked for."""
        start, count = request.piece_start, request.piece_count
        card = replace(self._card, pieces=tuple(self._vocabulary.pieces[start : start + count]))
        if not request.chat_template:
            card = replace(card, chat_template=None)
        return codec.encode_card(card)

    async def GetTokenizer(  # noqa: N802  # named by the proto
        self,
        request: pb.GetTokenizerRequest,  # noqa: ARG002  # the generated signature
        context: Any,  # noqa: ARG002  # the generated signature
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        """The target's tokenizer, in parts."""
        packed = await asyncio.to_thread(self._pack_tokenizer)
        for start in range(0, len(packed), _PART_BYTES):
            yield pb.GetTokenizerResponse(data=packed[start : start + _PART_BYTES])

    async def Decode(  # noqa: N802  # named by the proto
        self,
        request_iterator: AsyncIterator[pb.DecodeRequest],
        context: grpc.aio.ServicerContext[pb.DecodeRequest, pb.DecodeResponse],
    ) -> AsyncIterator[pb.DecodeResponse]:
        """One generation."""
        outbox: Outbox = asyncio.Queue()
        stream: Stream[Slot] | None = None
        reader: asyncio.Task[None] | None = None
        self._outboxes.add(outbox)
        try:
            # 1. The first message opens the session.
            stream = await self._engine.open(
                await self._first(request_iterator),
                outbox.put_nowait,
                caller_host(context, self._front_token),
            )
            # 2. Later ones go to its inbox as they come.
            reader = asyncio.create_task(self._read(request_iterator, stream, outbox))
            # 3. Answers go out until the text is finished.
            while True:
                answer = await outbox.get()
                if isinstance(answer, DraftwireError):
                    raise answer
                yield codec.encode_cloud(answer)
                if isinstance(answer, Finished):
                    return
        except DraftwireError as error:
            await abort(context, error)
        finally:
            self._outboxes.discard(outbox)
            if reader is not None:
                reader.cancel()
            if stream is not None:
                self._engine.close(stream)

    async def _first(self, requests: AsyncIterator[pb.DecodeRequest]) -> Open:
        """The Open message."""
        if self._why_ended is not None:
            raise self._why_ended()
        async for request in requests:
            message = codec.decode_edge(request)
            if isinstance(message, Open):
                self._check_model(message)
                return message
            break
        raise ProtocolError("the first message of a Decode stream must be Open")

    def _check_model(self, request: Open) -> None:
        """Refuse to go on with a text that another model began: the two halves would not fit."""
        if request.model_id and request.model_id != self._card.model_id:
            raise ModelMismatchError(
                "the server now serves another model than the one this text was begun with; "
                "start the text again"
            )

    async def _read(
        self, requests: AsyncIterator[pb.DecodeRequest], stream: Stream[Slot], outbox: Outbox
    ) -> None:
        """Deliver what the edge sends; after its half-close it may still listen."""
        try:
            async for request in requests:
                await self._engine.deliver(stream, codec.decode_edge(request))
            self._engine.hang_up(stream)
        except DraftwireError as error:
            outbox.put_nowait(error)

    def drain(self) -> None:
        """End every stream with UNAVAILABLE; the edge resumes elsewhere or later."""
        self._end_all(
            lambda: CloudUnavailableError("the server is shutting down; the session can be resumed")
        )

    def fail(self) -> None:
        """End every stream with INTERNAL: the engine is gone, and with it every answer."""
        self._end_all(lambda: DraftwireError("the server's engine stopped; its log says why"))

    def _end_all(self, why: Callable[[], DraftwireError]) -> None:
        self._why_ended = why
        for outbox in self._outboxes:
            outbox.put_nowait(why())
