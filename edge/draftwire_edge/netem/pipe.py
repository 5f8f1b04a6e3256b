"""One direction of one connection: reads on while earlier bytes wait for their time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from draftwire_edge.netem.delay_line import DelayLine, most_held_bytes
from draftwire_edge.netem.link import Link

_LINGER_0 = struct.pack("ii", 1, 0)


class End(Enum):
    """How a stream ends."""

    FINISHED = "finished"
    RESET = "reset"


def reset(transport: asyncio.Transport | None) -> None:
    """Close a connection with RST instead of FIN, and drop what is not sent."""
    if transport is None:
        return
    with suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    transport.abort()


class Pipe:
    """Takes bytes from ``source``, holds them as long as ``line`` says, and gives them to ``sink``.

    Holds at most ``most_held_bytes`` of the conditions and one read; beyond that ``source`` is not read.
    """

    def __init__(self, line: DelayLine, link: Link, on_finished: Callable[[], None]) -> None:
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.passed_bytes = 0
        self.finished = False
        self._line = line
        self._link = link
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | End]] = deque()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sink_is_full = False

    def push(self, data: bytes) -> None:
        """Bytes arrived from the source."""
        if self.finished:
            return
        start = 0
        for release_s, size in self._line.schedule(self._loop.time(), len(data), self._link.conditions):
            self._waiting.append((release_s, data[start : start + size]))
            start += size
        self._held_bytes += len(data)
        self._throttle()
        self._arm()

    def push_end(self, how: End) -> None:
        """The source ended; what is under way arrives first."""
        if not self.finished:
            self._waiting.append((self._line.end(self._loop.time(), self._link.conditions), how))
            self._arm()

    def attach(self, sink: asyncio.Transport) -> None:
        """Give bytes to this transport from now on."""
        self.sink = sink
        self.flush()

    def hold(self, *, full: bool) -> None:
        """The sink cannot take more, or can again."""
        self._sink_is_full = full
        self.flush()

    def flush(self) -> None:
        """Let out everything whose time has come."""
        self._disarm()
        if self._ready:
            now_s = self._loop.time()
            due: list[bytes] = []
            while self._waiting and self._waiting[0][0] <= now_s:
                item = self._waiting.popleft()[1]
                if isinstance(item, End):
                    self._write(due)
                    self._finish(item)
                    return
                due.append(item)
            self._write(due)
        self._arm()

    def close(self) -> None:
        """Drop everything; nothing comes out any more."""
        self.finished = True
        self._disarm()
        self._waiting.clear()
        self._held_bytes = 0

    @property
    def _ready(self) -> bool:
        return not (self.sink is None or self._sink_is_full or self._link.frozen or self.finished)

    def _write(self, due: list[bytes]) -> None:
        if due and self.sink is not None:
            data = b"".join(due)
            self._held_bytes -= len(data)
            self.passed_bytes += len(data)
            self._throttle()
            # This may call hold() before it returns, so it comes last.
            self.sink.write(data)

    def _finish(self, how: End) -> None:
        self.close()
        if how is End.RESET:
            reset(self.sink)
        elif self.sink is not None and not self.sink.is_closing():
            self.sink.write_eof()
        self._on_finished()

    def _throttle(self) -> None:
        """Stop or resume reading, with a gap between the two bounds."""
        if self.source is None or self.source.is_closing():
            return
        most = most_held_bytes(self._link.conditions)
        if self._held_bytes > most:
            self.source.pause_reading()
        elif self._held_bytes <= most // 2 and not self.source.is_reading():
            self.source.resume_reading()

    def _arm(self) -> None:
        """One timer, for the first in line."""
        if self._timer is None and self._waiting and self._ready:
            self._timer = self._loop.call_at(self._waiting[0][0], self.flush)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
