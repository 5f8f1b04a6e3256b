"""From options to a report: start the services, measure, summarise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwire_sim.bench.capacity import servers, vllm_process
from draftwire_sim.bench.capacity.arms import BATCHED, SERVED_BY, VLLM
from draftwire_sim.bench.capacity.figures import summarise
from draftwire_sim.bench.capacity.intrusion import measure_intrusions, summarise_intrusions
from draftwire_sim.bench.capacity.measure import Plan, measure
from draftwire_sim.bench.machine import made_with

Show = Callable[[str], None]

#: In tokens; vLLM wants to know. Byte by byte the recorded questions are below it too.
_LONGEST_PROMPT = 3072


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """What the user asked for."""

    plan: Plan
    model: str
    dtype: str
    threads: int | None
    #: Python with vLLM; None for this one, if it has it.
    vllm_python: str | None
    #: Tokens of the prompt that comes in mid-run; None for the other scenario.
    long_prompt: int | None

    @property
    def service(self) -> servers.ServiceOptions:
        """How the services are started; the long prompt is one more session."""
        sessions = max(self.plan.clients) + 1
        return servers.ServiceOptions(self.model, self.dtype, self.threads, sessions)

    @property
    def folder(self) -> Path:
        """Of the target, as the service finds it."""
        from draftwire_cloud.serve_command import target_folder  # noqa: PLC0415  # torch takes seconds

        return target_folder(self.model, "float32" if self.dtype == "float32" else "bfloat16", download=True)


def run(options: CapacityOptions, show: Show) -> dict[str, Any]:
    """Measure what was asked for."""
    report = _run_intrusions(options, show) if options.long_prompt else _run_capacity(options, show)
    return report | {"options": asdict(options)} | made_with()


def _run_intrusions(options: CapacityOptions, show: Show) -> dict[str, Any]:
    with servers.running(options.service, [BATCHED]) as addresses:
        length = options.long_prompt or 0
        measured = asyncio.run(measure_intrusions(options.plan, length, addresses[BATCHED], show))
    return {
        "summary": summarise_intrusions(measured),
        "turns": [turn.as_json() for turn in (*measured.without, *measured.beside)],
        "alone": [text.as_json() for text in measured.alone],
        "intruders": [text.as_json() for text in measured.intruders],
    }


def _run_capacity(options: CapacityOptions, show: Show) -> dict[str, Any]:
    plan, folder = options.plan, options.folder
    ours = [arm for arm in plan.arms if arm in SERVED_BY]
    with _vllm(options, folder, show) as (state, vllm), servers.running(options.service, ours) as addresses:
        measured = asyncio.run(measure(plan, addresses, show, vllm))
    per_token = servers.kv_bytes_per_token(folder, measured.card.dtype)
    return {
        "summary": summarise(measured.turns, per_token),
        "vllm": state,
        "kv_bytes_per_token": per_token,
        "kv_bytes_from": "the model's config x tokens held at once",
        "dtype": measured.card.dtype,
        "texts": [
            {"prompt_tokens": len(one.prompt_ids), "tokens": len(one.output_ids)} for one in measured.known
        ],
        "turns": [turn.as_json() for turn in measured.turns],
    }


@contextmanager
def _vllm(
    options: CapacityOptions, folder: Path, show: Show
) -> Iterator[tuple[str, vllm_process.VllmProcess | None]]:
    """What the report says of vLLM, and a worker where there is one."""
    if VLLM not in options.plan.arms:
        yield "not asked for", None
        return
    python = vllm_process.interpreter(options.vllm_python)
    if python is None:
        show(f"vllm: {vllm_process.NOT_INSTALLED}, this arm is left out")
        yield vllm_process.NOT_INSTALLED, None
        return
    asked = vllm_process.VllmOptions(
        folder, _arithmetic(options.dtype), options.plan.gamma, _longest(folder, options.plan.tokens),
        options.threads,
    )  # fmt: skip
    with vllm_process.running(python, asked) as worker:
        yield worker.version, worker


def _longest(folder: Path, tokens: int) -> int:
    """Prompt and text together, in tokens, as far as the model's context allows."""
    from transformers import AutoConfig  # noqa: PLC0415  # seconds to import

    from draftwire_cloud.engine.facts import context_length  # noqa: PLC0415  # torch takes seconds

    return min(_LONGEST_PROMPT + tokens, context_length(AutoConfig.from_pretrained(folder)))


def _arithmetic(dtype: str) -> str:
    """The type that our service computes in; vLLM would take the one that the weights are stored in."""
    from draftwire_cloud.engine.precision import pick_device, pick_dtype  # noqa: PLC0415  # torch takes seconds

    return str(pick_dtype(dtype, pick_device())).removeprefix("torch.")  # type: ignore[arg-type]  # checked by typer
