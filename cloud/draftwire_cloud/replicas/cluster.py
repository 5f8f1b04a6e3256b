"""Ray on this machine alone: no dashboard, nothing reported, nothing that listens beyond loopback."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from draftwire_cloud.replicas.actor import ReplicaActor, ReplicaSpec
from draftwire_cloud.replicas.keeper import Ready
from draftwire_protocol.errors import DraftwireError, UserInputError

#: The least that Ray allows; nothing large goes through its object store.
_STORE_BYTES = 80 << 20
#: Ray's sockets live in its folder, and their paths must stay short.
_SHORT = Path("/tmp")  # noqa: S108  # a fresh folder is made in it


class RayReplica:
    """A replica in an actor that Ray starts again whenever its process ends.

    Args:
        spec: what it serves.
        gpus: its share of the accelerators.
    """

    def __init__(self, spec: ReplicaSpec, gpus: float) -> None:
        import ray  # noqa: PLC0415  # an extra of its own

        # Torch's threads are counted by the target itself, so Ray need not find cores for it.
        made = ray.remote(ReplicaActor).options(num_cpus=0, num_gpus=gpus, max_restarts=-1)
        self._actor: Any = made.remote(spec)
        self._gone: type[Exception] = ray.exceptions.RayActorError

    async def ready(self) -> Ready:
        """Wait until it serves.

        Raises:
            DraftwireError: it cannot, or its process ended.
        """
        try:
            answer = await self._actor.ready.remote()
        except self._gone as error:
            raise DraftwireError("its process ended") from error
        if isinstance(answer, Ready):
            return answer
        raise DraftwireError(answer)

    async def ended(self) -> None:
        """Wait until the process ends."""
        try:
            await self._actor.serve.remote()
        except self._gone:
            return


def require_ray() -> None:
    """Say so where the extra is missing.

    Raises:
        UserInputError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise UserInputError("--engine", "ray is not installed", "Run pip install '.[cloud,ray]'")


@contextmanager
def ray_replicas(spec: ReplicaSpec, count: int) -> Iterator[Sequence[RayReplica]]:
    """Replicas of one target; Ray and all its processes are gone afterwards.

    Ray ties its processes to the thread that starts them: call it on the main one.

    Args:
        spec: what each of them serves.
        count: how many.
    """
    _configure()
    import ray  # noqa: PLC0415  # an extra of its own, configured before it is imported

    with tempfile.TemporaryDirectory(
        prefix="dw-", dir=_SHORT if _SHORT.is_dir() else None, ignore_cleanup_errors=True
    ) as folder:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            logging_level=logging.WARNING,
            _temp_dir=folder,
        )
        try:
            gpus = ray.cluster_resources().get("GPU", 0.0)
            share = 1 / ceil(count / gpus) if gpus else 0.0
            yield [RayReplica(spec, share) for _ in range(count)]
        finally:
            ray.shutdown()


def _configure() -> None:
    """What Ray and its processes read from the environment."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        # No clusters of several machines: with this, Ray listens on loopback only, on Linux too.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        # Other users of the machine must not command the actors; a token of our own leaves no file behind.
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_COLOR_PREFIX="0",
        RAY_DEDUP_LOGS="0",
    )
