"""``draftwire-cloud serve``: from the operator's words to a running service."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from draftwire_cloud.convert import ensure_safetensors
from draftwire_cloud.engine.sharding import require_shardable
from draftwire_cloud.engine.threads import compute_by_oneself, in_passing
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_cloud.metrics import Observed, ServerCollector
from draftwire_cloud.metrics_server import exposing
from draftwire_cloud.replicas.cluster import require_ray
from draftwire_cloud.replicas.serving import serve_replicas
from draftwire_cloud.rpc_counts import RpcCounter
from draftwire_cloud.server import Address, CloudServer
from draftwire_cloud.tensor_parallel.follower import follow
from draftwire_cloud.tensor_parallel.group import RankGroup
from draftwire_cloud.tensor_parallel.world import require_devices, torchrun_world
from draftwire_models.cache import ModelCache
from draftwire_models.progress import console_progress
from draftwire_models.resolve import resolve_target
from draftwire_protocol.errors import UserInputError

StoredType = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class ServeJob:
    """What the operator asked for."""

    model: str
    host: str
    port: int
    dtype: Literal["auto", "bfloat16", "float32"]
    threads: int | None
    fixed_shapes: bool
    kv_bytes: int
    max_sessions: int
    max_batch: int
    lease_s: float
    download: bool
    #: Processes to split the model over.
    tp: int = 1
    engine: Literal["local", "ray"] = "local"
    replicas: int = 1
    #: Where Prometheus comes; without a port nowhere.
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.replicas > 1 and self.engine != "ray":
            raise UserInputError(
                "--replicas",
                f"{self.replicas} replicas need Ray",
                "Add --engine ray, or leave --replicas out",
            )
        if self.tp > 1 and self.engine == "ray":
            raise UserInputError(
                "--tp", "replicas cannot be split", "Leave --tp out, or leave out --engine and --replicas"
            )
        if self.metrics_port is not None and self.engine == "ray":
            raise UserInputError(
                "--metrics-port",
                "the counters are in the replicas' processes, and the front does not ask for them yet",
                "Leave --metrics-port out, or leave out --engine and --replicas",
            )

    @property
    def limits(self) -> EngineLimits:
        """What each engine allows."""
        return EngineLimits(self.max_sessions, self.max_batch, self.lease_s)

    @property
    def address(self) -> Address:
        """Where edges come."""
        return Address(self.host, self.port)

    @property
    def metrics_address(self) -> Address | None:
        """Where Prometheus comes."""
        return None if self.metrics_port is None else Address(self.metrics_host, self.metrics_port)


def target_folder(model: str, stored: StoredType, *, download: bool) -> Path:
    """The safetensors folder of a pair's target, a folder, or a GGUF file; converts the latter once.

    Raises:
        ModelError: unknown, missing, damaged, or not to be had.
    """
    progress = console_progress()
    path = resolve_target(model, argument="--model", download=download, progress=progress)
    if path.is_dir():
        return path
    return ensure_safetensors(path, ModelCache.open().root, stored, progress)


async def run_serve(job: ServeJob, say: Callable[[str], None]) -> None:
    """Load, serve, and end cleanly on SIGTERM or SIGINT.

    Raises:
        DraftwireError: a replica cannot serve.
        LostRankError: a part of a split target ended.
        UnsupportedModelError: the engine cannot serve this model, or not split.
        UserInputError: the port is taken, or the model cannot be split like this.
    """
    if job.engine == "ray":
        require_ray()
        await serve_replicas(target_config(job), job.limits, job.address, job.replicas, say)
        return
    world = torchrun_world(job.tp)
    config = target_config(job)
    if job.tp == 1:
        compute_by_oneself()
        await _serve(await in_passing(partial(load_target, config, say)), job, say)
        return
    require_shardable(config.folder, job.tp)
    if world is None:
        require_devices(job.tp)
    elif world.rank > 0:
        follow(config, world)
        return
    async with RankGroup(config, world) as group:
        await _serve(await group.load(say), job, say, group.guard)


def target_config(job: ServeJob) -> TargetConfig:
    """What to load, its weights at hand."""
    # Models are published in bfloat16; float32 keeps every digit of a quantised file for who asks for it.
    stored: StoredType = "float32" if job.dtype == "float32" else "bfloat16"
    return TargetConfig(
        target_folder(job.model, stored, download=job.download),
        Path(job.model).name,
        job.dtype,
        job.threads,
        fixed_shapes=job.fixed_shapes,
        kv_bytes=job.kv_bytes,
        ranks=job.tp,
    )


def _as_it_is(work: Awaitable[str]) -> Awaitable[str]:
    """Nothing besides the server itself can end."""
    return work


async def _serve(
    loaded: LoadedTarget,
    job: ServeJob,
    say: Callable[[str], None],
    guard: Callable[[Awaitable[str]], Awaitable[str]] = _as_it_is,
) -> None:
    """Serve a loaded target until a signal, or until what guards it ends the wait."""
    say(f"self-test: {loaded.exactness.summary()}")
    rpcs = RpcCounter() if job.metrics_address else None
    with exposing(job.metrics_address, say) as registry:
        async with CloudServer(loaded, job.address, job.limits, rpcs=rpcs) as server:
            if rpcs is not None:
                registry.register(ServerCollector(Observed(server.engine, rpcs.counts, loaded)))
            sys.stdout.write(f"serving {loaded.card.name} on {job.host}:{server.port}\n")
            sys.stdout.flush()
            name = await guard(server.serve_until_signal())
            say(f"{name}: shutting down")
