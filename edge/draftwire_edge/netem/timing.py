"""An event loop whose timers are as fine as the system's."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

if sys.platform == "linux":

    class _FineEpollSelector(selectors.EpollSelector):
        """Waits in ``select`` on the epoll descriptor: microseconds, where ``epoll_wait`` rounds up to ms."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop with timers finer than a millisecond; kqueue has them by itself.

    A ``Relay`` works on any loop; on a common one on Linux each direction is up to a millisecond later.
    """
    if sys.platform == "linux":
        return asyncio.SelectorEventLoop(_FineEpollSelector())
    else:  # noqa: RET505  # without it, mypy sees code that this platform never reaches
        return asyncio.new_event_loop()
