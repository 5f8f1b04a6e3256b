"""``draftwire-cloud``: the operator's command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Annotated, Literal

import typer
from rich.console import Console

from draftwire_models.errors import DownloadError, ModelError
from draftwire_models.openmp import OWN_TURNS, SHARED_TURNS, wait_shortly
from draftwire_protocol.errors import DraftwireError, UserInputError

app = typer.Typer(
    name="draftwire-cloud",
    help="Verify drafted tokens with a large model, behind gRPC.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_notes = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

DtypeOption = Annotated[
    Literal["auto", "bfloat16", "float32"],
    typer.Option(help="Arithmetic; auto is bfloat16 where the hardware computes in it, else float32."),
]


@app.callback()
def _commands() -> None:
    """Keep subcommands even while there are few."""


@app.command()
def serve(  # one parameter an option
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="PAIR|FOLDER|FILE", help="A pair's target, a model folder or a GGUF."
        ),
    ] = "qwen2.5-coder",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 50051,
    dtype: DtypeOption = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; all cores, shared by replicas, if not given.")
    ] = None,
    fixed_shapes: Annotated[
        bool, typer.Option(help="Give the same bits for a block and for one token at a time.")
    ] = True,
    kv_memory_mib: Annotated[
        int, typer.Option(min=1, help="Memory for sessions' keys and values, MiB.")
    ] = 2048,
    max_sessions: Annotated[int, typer.Option(min=1, help="Most generations at once.")] = 64,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Most sessions in one forward pass; 1 turns batching off.")
    ] = 32,
    lease_s: Annotated[
        float, typer.Option(min=0, help="Keep a silent session's KV this long, seconds.")
    ] = 120.0,
    download: Annotated[bool, typer.Option(help="Fetch a pair's model if it is not here yet.")] = True,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="Where the target runs: in this process, or as replicas in processes of Ray's."),
    ] = "local",
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            help="Copies of the target; memory, sessions and threads are each one's. With --engine ray.",
        ),
    ] = 1,
    tp: Annotated[
        int,
        typer.Option(min=1, help="Split the model over this many GPUs, a process each; see docs/engine.md."),
    ] = 1,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve Prometheus' /metrics here, 0 takes a free port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1",
) -> None:
    """Serve a target model until SIGTERM or Ctrl-C.

    Prints one line to standard output when it is ready: `serving NAME on HOST:PORT`.

    For example:

    - `draftwire-cloud serve`

    - `draftwire-cloud serve --model qwen2.5 --host 0.0.0.0 --dtype bfloat16`

    - `draftwire-cloud serve --model ./my-model --port 0 --threads 8`

    - `draftwire-cloud serve --model qwen2.5 --tp 2`

    - `draftwire-cloud serve --engine ray --replicas 2`

    - `draftwire-cloud serve --metrics-port 9464`
    """
    # Before torch is imported. Ranks and replicas share the machine with each other, and who is reached from
    # this machine only, with those who draft.
    has_machine = tp == 1 and engine == "local" and not _is_loopback(host)
    wait_shortly(OWN_TURNS if has_machine else SHARED_TURNS)

    from draftwire_cloud.serve_command import ServeJob, run_serve  # noqa: PLC0415  # keeps --help quick

    with _errors_explained():
        job = ServeJob(
            model=model, host=host, port=port, dtype=dtype, threads=threads, fixed_shapes=fixed_shapes,
            kv_bytes=kv_memory_mib << 20, max_sessions=max_sessions, max_batch=max_batch, lease_s=lease_s,
            download=download, tp=tp, engine=engine, replicas=replicas,
            metrics_host=metrics_host, metrics_port=metrics_port,
        )  # fmt: skip
        asyncio.run(run_serve(job, _notes.print))


@app.command()
def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Which service.")] = "127.0.0.1:50051",
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Give up after this, seconds.")] = 5.0,
) -> None:
    """Ask a service whether it is ready; exit code 0 if so, 1 if not.

    For example: `draftwire-cloud health 127.0.0.1:50051`
    """
    from draftwire_cloud.health import ask_health  # noqa: PLC0415  # keeps --help quick

    status = ask_health(address, timeout_s)
    sys.stdout.write(status + "\n")
    raise typer.Exit(0 if status == "SERVING" else 1)


@app.command()
def convert(
    model: Annotated[str, typer.Argument(metavar="PAIR|FILE", help="A pair's target or a GGUF file.")],
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Type of the stored weights.")
    ] = "bfloat16",
) -> None:
    """Convert a GGUF target ahead of time and print the folder; `serve` does it by itself too.

    For example: `draftwire-cloud convert qwen2.5-coder`
    """
    wait_shortly()

    from draftwire_cloud.serve_command import target_folder  # noqa: PLC0415  # keeps --help quick

    with _errors_explained():
        folder = target_folder(model, dtype, download=True)
        sys.stdout.write(f"{folder}\n")


def _is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches who listens there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _errors_explained() -> Iterator[None]:
    """Exit 2 where the operator can fix what was typed, 1 where something failed, 130 after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
    except (DraftwireError, ModelError) as error:
        failed = isinstance(error, DownloadError) or not isinstance(error, (UserInputError, ModelError))
        _notes.print(f"Error: {error}")
        raise typer.Exit(1 if failed else 2) from error


def main() -> None:
    """Entry point."""
    try:
        app()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("draftwire"):
            raise
        _notes.print(f"Error: the cloud's half is not installed ({error}). Run pip install '.[cloud]'")
        sys.exit(1)
