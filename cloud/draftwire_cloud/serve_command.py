"""``draftwire-cloud serve``: from the operator's words to a running service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftwire_cloud.convert import ensure_safetensors
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import TargetConfig, load_target
from draftwire_cloud.replicas.cluster import require_ray
from draftwire_cloud.replicas.serving import serve_replicas
from draftwire_cloud.server import Address, CloudServer
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
    engine: Literal["local", "ray"] = "local"
    replicas: int = 1

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.replicas > 1 and self.engine != "ray":
            raise UserInputError(
                "--replicas",
                f"{self.replicas} replicas need Ray",
                "Add --engine ray, or leave --replicas out",
            )


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
    """Load, serve, and end cleanly on SIGTERM or SIGINT."""
    # Models are published in bfloat16; float32 keeps every digit of a quantised file for who asks for it.
    stored: StoredType = "float32" if job.dtype == "float32" else "bfloat16"
    if job.engine == "ray":
        require_ray()
    folder = target_folder(job.model, stored, download=job.download)
    config = TargetConfig(
        folder,
        Path(job.model).name,
        job.dtype,
        job.threads,
        fixed_shapes=job.fixed_shapes,
        kv_bytes=job.kv_bytes,
    )
    limits = EngineLimits(job.max_sessions, job.max_batch, job.lease_s)
    address = Address(job.host, job.port)
    if job.engine == "ray":
        await serve_replicas(config, limits, address, job.replicas, say)
    else:
        await _serve_one(config, limits, address, say)


async def _serve_one(
    config: TargetConfig, limits: EngineLimits, address: Address, say: Callable[[str], None]
) -> None:
    """One target in this process."""
    loaded = await asyncio.to_thread(load_target, config, say)
    say(f"self-test: {loaded.exactness.summary()}")
    async with CloudServer(loaded, address, limits) as server:
        sys.stdout.write(f"serving {loaded.card.name} on {address.host}:{server.port}\n")
        sys.stdout.flush()
        name = await server.serve_until_signal()
        say(f"{name}: shutting down")
