"""``draftwire bench``: measures the real system."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftwire_edge.exits import FAILURE_EXIT, errors_explained
from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.cli import capacity
from draftwire_sim.bench.machine import made_with

if TYPE_CHECKING:
    from draftwire_sim.bench.arms import Arm
    from draftwire_sim.bench.latency import Measured
    from draftwire_sim.bench.links import BenchLink

app = typer.Typer(
    name="bench", help="Measure the real system.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.command()(capacity)
_screen = Console(highlight=False, soft_wrap=True)
_QUICK_ARMS = "cloud,draft,lockstep-2,lockstep-4,lockstep-auto,pipelined,duplex,auto"


class TargetKind(Enum):
    """What verifies."""

    PACED = "paced"
    REAL = "real"


@app.command()
def latency(
    target: Annotated[
        TargetKind, typer.Option(help="The real target, or its recording at a stated pace.")
    ] = (TargetKind.PACED),
    rtt_ms: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Round-trip times in ms.", show_default="0,15,30,60,100,200,400"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Instead: links of `draftwire netem`, e.g. 4g or wifi,train."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, max=12, help="How many texts.")] = 12,
    tokens: Annotated[int, typer.Option(min=2, max=128, help="Tokens a text.")] = 128,
    arms: Annotated[str | None, typer.Option(metavar="LIST", help="Only these ways to write.")] = None,
    a_ms: Annotated[float, typer.Option(help="Paced: a pass over n tokens takes a + b·n ms.")] = 50.0,
    b_ms: Annotated[float, typer.Option(help="Paced: b.")] = 1.0,
    jitter_ms: Annotated[float | None, typer.Option(help="Jitter of the link.")] = None,
    rate_kbit: Annotated[float | None, typer.Option(help="Kilobits a second, in each direction.")] = None,
    loss: Annotated[float | None, typer.Option(help="Share of packets lost, up to 0.5.")] = None,
    useless: Annotated[
        bool, typer.Option("--useless", help="Draft with random weights, made once from the draft model's.")
    ] = False,
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
    when any text differs from what the target alone writes; what the draft model writes alone (`draft`) is
    another text and not compared.

    For example:

    - `draftwire bench latency --quick`

    - `draftwire bench latency --rtt-ms 30,100 --prompts 4 --json latency.json --plot latency.png`

    - `draftwire bench latency --target real --rtt-ms 30`

    - `draftwire bench latency --profile wifi,4g,train --arms cloud,duplex,auto`

    - `draftwire bench latency --rtt-ms 10 --change 1:300,3:10 --arms cloud,duplex,auto`
    """
    with errors_explained():
        from draftwire_sim.bench.links import (  # noqa: PLC0415  # keeps --help quick
            DEFAULT_RTTS,
            QUICK_RTTS,
            LinkOptions,
            chosen_links,
        )
        from draftwire_sim.bench.parts import check_installed  # noqa: PLC0415  # keeps --help quick

        typed = LinkOptions(rtt_ms, profile, change, jitter_ms, rate_kbit, loss)
        links = chosen_links(typed, QUICK_RTTS if quick else DEFAULT_RTTS)
        if quick:
            prompts, tokens, arms = 1, min(tokens, 48), arms or _QUICK_ARMS
        options = {
            "target": target.value, "links": [link.name for link in links], **asdict(typed),
            "prompts": prompts, "tokens": tokens, "arms": arms, "a_ms": a_ms, "b_ms": b_ms,
            "useless": useless, "draft_threads": draft_threads,
        }  # fmt: skip
        check_installed(plots=plot is not None)
        report = run(options, links)
        show(report)
        if json_file is not None:
            json_file.write_text(json.dumps(report) + "\n")
        if plot is not None:
            from draftwire_sim.bench.plot import draw  # noqa: PLC0415  # matplotlib is slow to import

            draw(report, plot)
        if not report["summary"]["identical"]:
            raise typer.Exit(FAILURE_EXIT)


def run(options: dict[str, Any], links: Sequence[BenchLink]) -> dict[str, Any]:
    """Start the service, measure, summarise."""
    from draftwire_sim.bench.cloud import paced_cloud, real_cloud  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.latency import Plan, measure  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.recordings import PAIR, load_recordings  # noqa: PLC0415  # keeps --help quick

    # Several threads want all cores; then nothing is pinned.
    draft_core, other_core = _cores() if options["draft_threads"] == 1 else (None, None)
    arms = _arms(options["arms"], changes=bool(options["change"]))
    plan = Plan(
        _draft_model(PAIR, useless=options["useless"]), links, load_recordings()[: options["prompts"]],
        options["tokens"], arms, draft_core, options["draft_threads"],
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
        "summary": _summary(measured, options["change"]),
        "options": options,
        **made_with(),
        "texts": [text.as_json() for text in measured.texts],
    }


def _arms(names: str | None, *, changes: bool) -> list[Arm]:
    """The arms that were named, or all."""
    from draftwire_sim.bench.arms import CLOUD_ALONE, all_arms  # noqa: PLC0415  # keeps --help quick

    wanted = names and names.split(",")
    arms = [arm for arm in all_arms() if not wanted or arm.name in wanted]
    if not arms:
        known = ", ".join(arm.name for arm in all_arms())
        raise UserInputError("--arms", f"{names!r} names none", f"Choose among {known}")
    if changes and all(arm.name != CLOUD_ALONE for arm in arms):
        raise UserInputError("--arms", "--change compares with the cloud alone", "Add cloud to the list")
    return arms


def _draft_model(pair: str, *, useless: bool) -> Path:
    """The pair's draft model, or one of random weights made from it."""
    from draftwire_models.progress import console_progress  # noqa: PLC0415  # keeps --help quick
    from draftwire_models.resolve import resolve_draft  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.shuffled_model import shuffled_model  # noqa: PLC0415  # keeps --help quick

    model = resolve_draft(pair, argument="--pair")
    return shuffled_model(model, console_progress()) if useless else model


def _summary(measured: Measured, change: str | None) -> dict[str, Any]:
    from draftwire_sim.bench.links import changes_of  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.recovery import recoveries  # noqa: PLC0415  # keeps --help quick
    from draftwire_sim.bench.summary import against_model, summarise  # noqa: PLC0415  # keeps --help quick

    summary = summarise(measured.texts)
    summary["measured_vs_model"] = against_model(measured.texts, measured.modelled_ms)
    if changes := changes_of(change):
        summary["recovery_s"] = recoveries(measured.texts, changes[-1][0])
    return summary


def _cores() -> tuple[int | None, int | None]:
    """A core for the drafter and one for the rest, where there are two and the system can pin."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None, None
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return first, second


def show(report: dict[str, Any]) -> None:
    """Print the table."""
    from draftwire_sim.bench.summary import link_title, table  # noqa: PLC0415  # keeps --help quick

    header, rows = table(report["summary"])
    shown = Table(*header)
    for row in rows:
        shown.add_row(*row)
    _screen.print(shown)
    for arm, by_link in report["summary"].get("recovery_s", {}).items():
        figures = (
            f"{link_title(link)}: {', '.join(map(_seconds, seconds))}" for link, seconds in by_link.items()
        )
        _screen.print(f"as fast as the cloud alone again after the last change, {arm}: {'; '.join(figures)}")
    same = report["summary"]["identical"]
    _screen.print("every text is the target's" if same else "[red]DIFFERENT texts[/]")


def _seconds(value: float | None) -> str:
    return "not in this text" if value is None else f"{value:.2f} s"
