"""The services of a capacity benchmark: processes of their own, of which one at a time is busy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_edge.service_process import cloud_command, started
from draftwire_models.openmp import OWN_TURNS
from draftwire_sim.bench.capacity.arms import SERVED_BY, UNBATCHED


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How the services are started."""

    #: Pair, folder or GGUF file.
    model: str
    dtype: str
    #: None leaves it to torch.
    threads: int | None
    #: Most sessions that a run has open at once.
    sessions: int


@contextmanager
def running(options: ServiceOptions, arms: Sequence[str]) -> Iterator[dict[str, str]]:
    """Arm -> HOST:PORT; arms that differ only in what the edges do share a service."""
    with ExitStack() as stack:
        addresses: dict[str, str] = {}
        for service in dict.fromkeys(SERVED_BY[arm] for arm in arms):
            addresses[service] = stack.enter_context(started(_command(options, service), turns=OWN_TURNS))
        yield {arm: addresses[SERVED_BY[arm]] for arm in arms}


def _command(options: ServiceOptions, service: str) -> list[str]:
    command = cloud_command(options.model)
    # Texts are never resumed here. The prompts come again in every arm, and those that found a beginning
    # in the slots of the arm before would have less to read.
    command += ["--dtype", options.dtype, "--lease-s", "0"]
    command += ["--max-sessions", str(max(64, options.sessions))]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    return [*command, "--max-batch", "1"] if service == UNBATCHED else command


def kv_bytes_per_token(folder: Path, dtype: str) -> int | None:
    """Bytes of keys and values of one token by the model's config; None where that does not say.

    Args:
        folder: of the target.
        dtype: its arithmetic, as its card says.
    """
    from transformers import AutoConfig  # noqa: PLC0415  # seconds to import

    config: Any = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    if not layers or not heads:
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * kv_heads * width * (2 if dtype == "bfloat16" else 4))
