"""Keeps one replica in service: attached while it lives, attached again when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from draftwire_cloud.replicas.front import Front
from draftwire_protocol.errors import DraftwireError

#: Between attempts to get a replica back, in seconds; doubled each time.
_FIRST_WAIT_S, _MAX_WAIT_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class Ready:
    """What a replica says when it can serve."""

    name: str
    address: str
    pid: int
    #: Of its exactness self-test.
    self_test: str


class Replica(Protocol):
    """A replica's process, which somebody else starts again when it ends."""

    async def ready(self) -> Ready:
        """Wait until it serves; asked again, it answers again. Raises DraftwireError where it cannot."""

    async def ended(self) -> None:
        """Wait until the process that answered last ends."""


class Keeper:
    """Attaches a replica to the front.

    Args:
        number: of the replica, from 0.
        replica: its process.
        front: where it is attached.
        say: told what happens, a line at a time.
    """

    def __init__(self, number: int, replica: Replica, front: Front, say: Callable[[str], None]) -> None:
        self._number = number
        self._replica = replica
        self._front = front
        self._tell = say

    async def start(self) -> Ready:
        """Attach it for the first time.

        Raises:
            DraftwireError: it cannot serve.
        """
        self._ready = await self._replica.ready()
        self._say(f"self-test: {self._ready.self_test}")
        await self._attach()
        return self._ready

    async def run(self) -> None:
        """Once started: attach it again whenever it was lost, until cancelled."""
        ended = asyncio.create_task(self._replica.ended())
        try:
            while True:
                # 1. Serve until the process ends, or a call breaks.
                either: set[asyncio.Future[Any]] = {ended, self._link.lost}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                # 2. Send nobody there meanwhile.
                await self._link.close()
                await self._front.tell_health()
                self._say("gone; its sessions go on elsewhere")
                # 3. Attach it again; where only a call broke, the process is watched already.
                pid = self._ready.pid
                self._ready = await self._ready_again()
                if ended.done() or self._ready.pid != pid:
                    ended.cancel()
                    ended = asyncio.create_task(self._replica.ended())
                await self._attach()
        finally:
            ended.cancel()
            await self._link.close()

    def _say(self, what: str) -> None:
        self._tell(f"replica {self._number + 1}: {what}")

    async def _attach(self) -> None:
        self._link = await self._front.attach(self._number, self._ready.address)
        self._say(f"ready at {self._ready.address} (process {self._ready.pid})")

    async def _ready_again(self) -> Ready:
        wait_s, said = _FIRST_WAIT_S, ""
        while True:
            try:
                return await self._replica.ready()
            except DraftwireError as error:
                if str(error) != said:
                    self._say(f"not back yet: {error}")
                said = str(error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
