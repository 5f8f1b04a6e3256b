"""What runs in a replica's process: a target and a service around it, on a free port of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import TargetConfig, load_target
from draftwire_cloud.replicas.keeper import Ready
from draftwire_cloud.server import Address, CloudServer
from draftwire_protocol.errors import DraftwireError

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica serves, and for whom."""

    config: TargetConfig
    limits: EngineLimits
    #: What the front shows that it calls for other hosts.
    front_token: str


class ReplicaActor:
    """An actor of Ray's; its methods run on one event loop.

    Args:
        spec: what to serve.
    """

    def __init__(self, spec: ReplicaSpec) -> None:
        self._spec = spec
        self._loading = asyncio.Lock()
        self._server: CloudServer | None = None

    async def ready(self) -> Ready | str:
        """Load the target and serve it, once.

        Returns:
            Where; or why not, since an exception does not always travel between processes whole.
        """
        async with self._loading:
            try:
                if self._server is None:
                    await self._serve()
            except DraftwireError as error:
                return str(error)
        return self._answer

    async def _serve(self) -> None:
        loaded = await asyncio.to_thread(load_target, self._spec.config, _log.info)
        address = Address(_LOOPBACK, 0)
        server = CloudServer(loaded, address, self._spec.limits, front_token=self._spec.front_token)
        self._server = await server.__aenter__()
        where, summary = f"{_LOOPBACK}:{server.port}", loaded.exactness.summary()
        self._answer = Ready(loaded.card.name, where, os.getpid(), summary)

    async def serve(self) -> None:
        """Never returns: without its engine the process is of no use, and Ray starts another one."""
        if self._server is not None:
            await self._server.engine_ended()
        os._exit(1)
