"""``draftwire bench``: measures the real system."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftwire_edge.exits import FAILURE_EXIT, errors_explained
from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.cli import capacity
from draftwire_sim.bench.machine import made_with

app = typer.Typer(
    name="bench", help="Measure the real system.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.command()(capacity)
_screen = Console(highlight=False, soft_wrap=True)
_RTTS = "0,15,30,60,100,200,400"
_QUICK_ARMS = "cloud,lockstep-2,lockstep-4,lockstep-auto,pipelined,duplex,auto"


class TargetKind(Enum):
    """What verifies."""

    PACED = "paced"
    REAL = "real"


@app.command()
def latency(
    target: Annotated[
        TargetKind, typer.Option(help="The real target, or its recording at a stated pace.")
    ] = (TargetKind.PACED),
    rtt_ms: Annotated[str, typer.Option(metavar="LIST", help="Round-trip times in ms.")] = _RTTS,
    prompts: Annotated[int, typer.Option(min=1, max=12, help="How many texts.")] = 12,
    tokens: Annotated[int, typer.Option(min=2, max=128, help="Tokens a text.")] = 128,
    arms: Annotated[str | None, typer.Option(metavar="LIST", help="Only these ways to write.")] = None,
    a_ms: Annotated[float, typer.Option(help="Paced: a pass over n tokens takes a + b·n ms.")] = 50.0,
    b_ms: Annotated[float, typer.Option(help="Paced: b.")] = 1.0,
    jitter_ms: Annotated[float, typer.Option(min=0, help="Jitter of the link.")] = 0.0,
    loss: Annotated[float, typer.Option(min=0, max=0.5, help="Share of packets lost.")] = 0.0,
    useless: Annotated[bool, typer.Option("--useless", help="Guess at random.")] = False,
    draft_threads: Annotated[
        int, typer.Option(min=1, help="Threads of the draft model. With more than one nothing is pinned.")
    ] = 1,
    change: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Changes of R within each text, SECONDS:MS, e.g. 1:300,3:10."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One text of 48 tokens, fewer ways, R 0, 30, 200.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw ms/token against R.")] = None,
) -> None:
    """Time per token against round-trip time, of every way to take turns, interleaved in one run.

    The drafter is pinned to the first core, the service and the link to the second. With --change,
    `recovery_s` says how long after the last change an arm was again as fast as the cloud alone. Exit code 1
    when any text differs from what the target alone writes.

    For example:

    - `draftwire bench latency --quick`

    - `draftwire bench latency --rtt-ms 30,100 --prompts 4 --json latency.json --plot latency.png`

    - `draftwire bench latency --target real --rtt-ms 30`

    - `draftwire bench latency --rtt-ms 10 --change 1:300,3:10 --arms cloud,duplex,auto`
    """
    with errors_explained():
        if quick:
            rtt_ms = "0,30,200" if rtt_ms == _RTTS else rtt_ms
            prompts, tokens, arms = 1, min(tokens, 48), arms or _QUICK_ARMS
        options = {
            "target": target.value, "rtts_ms": _numbers(rtt_ms), "prompts": prompts, "tokens": tokens,
            "arms": arms, "a_ms": a_ms, "b_ms": b_ms, "jitter_ms": jitter_ms, "loss": loss,
            "useless": useless, "draft_threads": draft_threads, "changes": _changes(change, _numbers(rtt_ms)),
        }  # fmt: skip
        report = run(options)
        show(report)
        if json_file is not None:
            json_file.write_text(json.dumps(report) + "\n")
        if plot is not None:
            from draftwire_sim.bench.plot import draw  # noqa: PLC0415  # matplotlib is slow to import

            draw(report, plot)
        if not report["summary"]["identical"]:
            raise typer.Exit(FAILURE_EXIT)


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(one) for one in text.split(",")]
    except ValueError as error:
        raise UserInputError("--rtt-ms", f"{text!r} is no list of numbers", "Write e.g. 0,30,100") from error
    if any(one < 0 for one in numbers):
        raise UserInputError("--rtt-ms", "a time below 0", "Write e.g. 0,30,100")
    return numbers


def _changes(text: str | None, rtts_ms: list[float]) -> list[tuple[float, float]]:
    """Seconds and R in ms of each change, in order of time."""
    try:
        pairs = [one.split(":") for one in text.split(",")] if text else []
        changes = sorted((float(at_s), float(rtt_ms)) for at_s, rtt_ms in pairs)
    except ValueError as error:
        problem = f"{text!r} is no list of SECONDS:MS"
        raise UserInputError("--change", problem, "Write e.g. 1:300,3:10") from error
    if any(at_s < 0 or rtt_ms < 0 for at_s, rtt_ms in changes):
        raise UserInputError("--change", "a number below 0", "Write e.g. 1:300,3:10")
    if changes and any(rtt_ms != changes[-1][1] for rtt_ms in rtts_ms):
        fix = "Let the last change go back to it, and give one --rtt-ms: --rtt-ms 10 --change 1:300,3:10"
        raise UserInputError("--change", "the link does not end as it began", fix)
    return changes


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Start the service, measure, summarise."""
    from draftwire_models.resolve import resolve_draft  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.arms import CLOUD_ALONE, all_arms  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.cloud import paced_cloud, real_cloud  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.latency import Plan, measure  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.recordings import PAIR, load_recordings  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.recovery import recoveries  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.summary import against_model, summarise  # noqa: PLC0415  # keeps --help quick

    # Several threads want all cores; then nothing is pinned.
    draft_core, other_core = _cores() if options["draft_threads"] == 1 else (None, None)
    wanted = options["arms"] and options["arms"].split(",")
    arms = [arm for arm in all_arms() if not wanted or arm.name in wanted]
    if not arms:
        names = ", ".join(arm.name for arm in all_arms())
        raise UserInputError("--arms", f"{options['arms']!r} names none", f"Choose among {names}")
    if options["changes"] and all(arm.name != CLOUD_ALONE for arm in arms):
        raise UserInputError("--arms", "--change compares with the cloud alone", "Add cloud to the list")
    plan = Plan(
        resolve_draft(PAIR, argument="--pair"), tuple(options["rtts_ms"]),
        load_recordings()[: options["prompts"]], options["tokens"], arms, options["jitter_ms"],
        options["loss"], draft_core, options["draft_threads"], options["useless"], options["changes"],
    )  # fmt: skip
    cloud: AbstractContextManager[str]
    if options["target"] == TargetKind.PACED.value:
        cloud = paced_cloud(options["a_ms"], options["b_ms"], other_core)
    else:
        cloud = real_cloud(PAIR, other_core)
    with cloud as address:
        if other_core is not None:
            os.sched_setaffinity(0, {other_core})  # this thread has the edge's event loop and the link
        measured = asyncio.run(measure(plan, address, lambda line: _screen.print(line, style="dim")))
    return {
        "summary": summarise(measured.texts)
        | {"measured_vs_model": against_model(measured.texts, measured.modelled_ms)}
        | (
            {"recovery_s": recoveries(measured.texts, options["changes"][-1][0])}
            if options["changes"]
            else {}
        ),
        "options": options,
        "draft_alone_ms": measured.draft_alone_ms,
        **made_with(),
        "texts": [text.as_json() for text in measured.texts],
    }


def _cores() -> tuple[int | None, int | None]:
    """A core for the drafter and one for the rest, where there are two and the system can pin."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None, None
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return first, second


def show(report: dict[str, Any]) -> None:
    """Print the table."""
    from draftwire_sim.bench.summary import table  # noqa: PLC0415  # keeps --help quick

    header, rows = table(report["summary"])
    shown = Table(*header, title=f"draft model alone: {report['draft_alone_ms']:.1f} ms/token (another text)")
    for row in rows:
        shown.add_row(*row)
    _screen.print(shown)
    for arm, by_rtt in report["summary"].get("recovery_s", {}).items():
        figures = (
            f"R {rtt}: {', '.join(_seconds(one) for one in seconds)}" for rtt, seconds in by_rtt.items()
        )
        _screen.print(f"as fast as the cloud alone again after the last change, {arm}: {'; '.join(figures)}")
    same = report["summary"]["identical"]
    _screen.print("every text is the target's" if same else "[red]DIFFERENT texts[/]")


def _seconds(value: float | None) -> str:
    return "not in this text" if value is None else f"{value:.2f} s"
