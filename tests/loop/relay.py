"""The emulated link of `draftwire netem`, undisturbed, in front of a service on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from draftwire_edge.netem import Relay


@asynccontextmanager
async def relaying(target_port: int) -> AsyncIterator[Relay]:
    """A running relay on a free port."""
    async with Relay(("127.0.0.1", target_port)) as relay:
        yield relay
