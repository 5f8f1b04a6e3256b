"""Whose turn it is: a fair queue of streams with work.

Pure: no clock, no torch, no asyncio. Messages wait in a stream's inbox and are taken
in between steps, so a session is never touched while its tokens are in the target.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from draftwire_cloud.leases import Slot
from draftwire_cloud.session import CloudSession, Work
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.messages import Cancel, CloudMessage, EdgeMessage, Finished

S = TypeVar("S", bound=Slot)

#: Most messages that wait for one stream; its edge is not read from while there are more.
INBOX_MESSAGES = 64


class Received(NamedTuple):
    """A message and when it came, in seconds."""

    message: EdgeMessage
    at: float


@dataclass(slots=True, eq=False)
class Stream(Generic[S]):
    """One Decode stream: a session, its KV slot, and its two mailboxes."""

    session: CloudSession
    slot: S
    #: Tokens the slot already held when the stream was opened.
    cached: int
    opened_at: float
    #: Delivers a message, or the error that ends the stream.
    send: Callable[[CloudMessage | DraftwireError], None]
    inbox: deque[Received] = field(default_factory=deque)
    #: When the work at hand became known, in seconds.
    ready_at: float = 0.0
    first_verdict_sent: bool = False
    #: The edge will say nothing more.
    half_closed: bool = False
    #: The edge was told the end, or is gone.
    closed: bool = False
    #: Whoever served it is gone: the slot is free as soon as no step uses it.
    left: bool = False

    def end(self, last: Finished | DraftwireError) -> None:
        """Send the last message, once."""
        if not self.closed:
            self.closed = True
            self.send(last)

    def end_if_finished(self) -> None:
        """Say so when the text is over."""
        if self.session.finished:
            self.end(self.session.finish_message)


class Job(NamedTuple, Generic[S]):
    """One stream's part of a step."""

    stream: Stream[S]
    work: Work


class Scheduler(Generic[S]):
    """Round-robin over streams with work.

    Args:
        max_batch: most sessions in one step.
    """

    def __init__(self, max_batch: int = 1) -> None:
        self._max_batch = max_batch
        self._queue: deque[Stream[S]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def streams(self) -> list[Stream[S]]:
        """Every stream, in turn order."""
        return list(self._queue)

    def add(self, stream: Stream[S]) -> None:
        """A new stream waits behind the others."""
        self._queue.append(stream)

    def remove(self, stream: Stream[S]) -> None:
        """Forget a stream; unknown ones are ignored."""
        if stream in self._queue:
            self._queue.remove(stream)

    def next_batch(self) -> list[Job[S]]:
        """Choose the next step; empty when nobody has work."""
        # 1. Take in what arrived for anyone: who is done or wrong hears it now, not when its turn comes.
        for stream in self._queue:
            self._take_in(stream)
        # 2. Whoever has work joins the step, until it is full.
        batch: list[Job[S]] = []
        for _ in range(len(self._queue)):
            stream = self._queue[0]
            self._queue.rotate(-1)
            work = None if stream.closed else stream.session.next_work(stream.slot.length)
            if work is not None:
                batch.append(Job(stream, work))
            if len(batch) == self._max_batch:
                break
        # 3. Those served now stand at the back of the queue.
        return batch

    def _take_in(self, stream: Stream[S]) -> None:
        """Hand waiting messages to the session; an error ends the stream, not the session."""
        while not stream.closed and stream.inbox:
            received = stream.inbox.popleft()
            try:
                answers = stream.session.receive(received.message)
            except DraftwireError as error:
                stream.end(error)
                return
            stream.ready_at = received.at
            for answer in answers:
                stream.send(answer)
        if stream.half_closed and stream.session.waiting:
            stream.session.receive(Cancel())  # the draft it waits for cannot come any more
        stream.end_if_finished()
