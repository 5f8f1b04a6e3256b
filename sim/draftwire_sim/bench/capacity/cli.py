"""``draftwire bench capacity``: options in, a table and files out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from draftwire_edge.exits import FAILURE_EXIT, errors_explained
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import MAX_DRAFT_TOKENS
from draftwire_sim.bench.capacity.arms import VLLM, chosen

_screen = Console(highlight=False, soft_wrap=True)
_CLIENTS, _QUICK_CLIENTS, _INTRUDED = "1,2,4,8,16,32", "1,4", "8"
#: Most edges at once that the command takes: beyond it the one process of the edges is what is measured.
_MOST_CLIENTS = 256
#: Columns that the table needs.
_WIDTH = 140


def capacity(  # one parameter an option
    clients: Annotated[
        str | None,
        typer.Option(metavar="LIST", help=f"Edges at once; {_CLIENTS}, or {_INTRUDED} with --long-prompt."),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="PAIR|FOLDER|FILE", help="The target, as for `draftwire-cloud serve`.")
    ] = "smollm2-self",
    prompts: Annotated[int, typer.Option(min=1, max=12, help="Turns: the edges begin at once so often.")] = 3,
    in_a_row: Annotated[
        int, typer.Option(min=1, max=8, help="Texts that an edge writes without a pause in each turn.")
    ] = 1,
    tokens: Annotated[
        int | None, typer.Option(min=2, max=512, help="Tokens a text; 64, or 128 with --long-prompt.")
    ] = None,
    gamma: Annotated[
        int, typer.Option(min=1, max=MAX_DRAFT_TOKENS, help="Drafted tokens a round; always lockstep.")
    ] = 5,
    acceptance: Annotated[
        float, typer.Option(min=0, max=1, help="Chance that a drafted token is the target's.")
    ] = 0.8,
    draft_ms: Annotated[float, typer.Option(min=0, help="Time to draft a token, ms.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Draws which drafted tokens are wrong.")] = 0,
    arms: Annotated[
        str | None, typer.Option(metavar="LIST", help="Of batched, unbatched, cloud and vllm; all.")
    ] = None,
    dtype: Annotated[Literal["auto", "bfloat16", "float32"], typer.Option(help="As for serve.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the service.")] = None,
    vllm_python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="A Python with vLLM, if this one has none.")
    ] = None,
    long_prompt: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="A prompt of so many tokens comes in mid-run.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"One text of 32 tokens, {_QUICK_CLIENTS} edges.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw figures against edges.")] = None,
) -> None:
    """Output tokens a second and verdict latency against the number of edges, batching on and off.

    The edges are scripted: they draft the target's own text, each token wrong with chance 1 - acceptance.
    Service, gRPC and target are real, the service is a process of its own. The arms, interleaved: `batched`,
    the service as it is; `unbatched`, one session in a forward pass; `cloud`, streaming without drafts;
    `vllm`, n-gram drafts, where it is installed. With --long-prompt: what a long prompt in mid-run does to
    the others' verdicts. Exit code 1 when any text differs from what the target alone writes.

    For example:

    - `draftwire bench capacity --quick`

    - `draftwire bench capacity --clients 1,16 --json capacity.json --plot capacity.png`

    - `draftwire bench capacity --clients 1,16 --arms batched,unbatched --prompts 1 --in-a-row 3`

    - `draftwire bench capacity --long-prompt 6000 --clients 8`
    """
    with errors_explained():
        if quick:
            prompts, tokens = 1, min(tokens or 32, 32)
        default = _INTRUDED if long_prompt else _QUICK_CLIENTS if quick else _CLIENTS
        counts = _counts(default if clients is None else clients, one=long_prompt is not None)
        named = chosen(arms)
        if long_prompt is not None:
            _refuse_beside_long_prompt(
                {
                    "--arms": arms,
                    "--plot": plot,
                    "--vllm-python": vllm_python,
                    "--in-a-row": in_a_row if in_a_row > 1 else None,
                }
            )
        if in_a_row > 1 and VLLM in named:
            fix = "Add --arms batched,unbatched,cloud"
            raise UserInputError("--in-a-row", "vLLM is given all texts of a turn at once", fix)
        if vllm_python is not None and VLLM not in named:
            raise UserInputError("--vllm-python", "--arms leaves vllm out", "Add vllm to the list")
        _check_files({"--json": json_file, "--plot": plot})

        from draftwire_sim.bench.parts import check_installed  # noqa: PLC0415  # keeps --help quick

        check_installed(plots=plot is not None)

        from draftwire_sim.bench.capacity.measure import Plan  # noqa: PLC0415  # keeps --help quick
        from draftwire_sim.bench.capacity.run import CapacityOptions, run  # noqa: PLC0415  # the same

        if plot is not None:
            from draftwire_sim.bench.capacity.plot import check_format  # noqa: PLC0415  # matplotlib is slow

            check_format(plot)
        plan = Plan(
            named, counts, prompts, tokens or (128 if long_prompt else 64), gamma, acceptance, draft_ms, seed,
            in_a_row,
        )  # fmt: skip
        options = CapacityOptions(plan, model, dtype, threads, vllm_python, long_prompt)
        report = run(options, lambda line: _screen.print(line, style="dim"))
        _finish(report, json_file, plot)


def _counts(text: str, *, one: bool) -> tuple[int, ...]:
    """Numbers of edges, as given.

    Raises:
        UserInputError: no such list.
    """
    fix = "Write e.g. 8" if one else "Write e.g. 1,4,16"
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserInputError("--clients", f"{text!r} is no list of numbers", fix) from error
    if not all(1 <= count <= _MOST_CLIENTS for count in counts):
        raise UserInputError("--clients", f"not all of {text!r} are in [1, {_MOST_CLIENTS}]", fix)
    if one and len(counts) != 1:
        raise UserInputError("--clients", "--long-prompt takes one number of edges", fix)
    return tuple(dict.fromkeys(counts))


def _refuse_beside_long_prompt(options: Mapping[str, object]) -> None:
    """Refuse what has no meaning there.

    Raises:
        UserInputError: one of them was given.
    """
    for option, value in options.items():
        if value is not None:
            raise UserInputError(option, "it means nothing beside --long-prompt", "Leave one of them out")


def _check_files(files: Mapping[str, Path | None]) -> None:
    """See before anything is measured that what is measured can be written.

    Raises:
        UserInputError: there is no folder for one of them.
    """
    for option, file in files.items():
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            problem = f"{file} is a folder" if file.is_dir() else f"there is no folder {file.parent}"
            raise UserInputError(option, problem, "Name a file in a folder that exists")


def _finish(report: dict[str, Any], json_file: Path | None, plot: Path | None) -> None:
    summary = report["summary"]
    if "arms" in summary:
        _show_arms(report)
    else:
        _show_intrusions(summary)
    same = summary["identical"]
    _screen.print("every text is the target's" if same else "[red]DIFFERENT texts[/]")
    if json_file is not None:
        json_file.write_text(json.dumps(report) + "\n")
    if plot is not None:
        from draftwire_sim.bench.capacity.plot import draw  # noqa: PLC0415  # matplotlib is slow to import

        draw(summary, plot)
    if not same:
        raise typer.Exit(FAILURE_EXIT)


def _show_arms(report: dict[str, Any]) -> None:
    from draftwire_sim.bench.capacity.table import table  # noqa: PLC0415  # keeps --help quick

    header, rows = table(report["summary"])
    shown = Table(title=f"{report['options']['model']}, {report['dtype']}", box=SIMPLE_HEAD)
    for name in header:
        shown.add_column(name, justify="left" if name == "arm" else "right")
    for row in rows:
        shown.add_row(*row)
    # A narrow one would cut every figure short; a terminal wraps the lines instead.
    Console(highlight=False, width=max(_screen.width, _WIDTH)).print(shown)
    _screen.print(f"vllm: {report['vllm']}")
    if report["summary"].get("vllm_identical") is False:
        _screen.print("vLLM's texts are not all ours: it computes in other shapes")


def _show_intrusions(summary: dict[str, Any]) -> None:
    shown = Table("verdicts of the others", "count", "p50 ms", "p99 ms")
    for name in summary["verdict_p50_ms"]:
        figures = (summary[f"verdict_p{percent}_ms"][name] for percent in (50, 99))
        shown.add_row(name, str(summary["verdicts"][name]), *(f"{one:.1f}" for one in figures))
    _screen.print(shown)
    ttft_ms = summary["ttft_ms"]
    _screen.print(
        f"with / without: p50 {summary['verdict_p50_ratio']:.2f}, p99 {summary['verdict_p99_ratio']:.2f}; "
        f"the long prompt's first token after {ttft_ms['with']:.0f} ms, alone {ttft_ms['alone']:.0f} ms"
    )
    if not summary["decoding_at_first_token"]:
        _screen.print("some turn's edges had ended before that: raise --tokens")
