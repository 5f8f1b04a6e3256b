"""``draftwire``: the laptop's command."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftwire_edge.config import EdgeSettings, config_file, load_settings, origin_of
from draftwire_edge.exits import FAILURE_EXIT, errors_explained
from draftwire_edge.netem.cli import netem
from draftwire_models.cli import models_app
from draftwire_protocol.commit import check_text
from draftwire_protocol.errors import UserInputError

app = typer.Typer(
    name="draftwire",
    help="Write one text with a small model here and a large one in the cloud.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(models_app, name="models")
app.command()(netem)

CloudOption = Annotated[
    str | None, typer.Option("--cloud", metavar="HOST:PORT", help="Where the service runs.")
]
PairOption = Annotated[
    str | None, typer.Option("--pair", metavar="NAME", help="See `draftwire models list`.")
]
DraftModelOption = Annotated[
    Path | None, typer.Option("--draft-model", metavar="FILE", help="A GGUF file instead of the pair's.")
]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads for drafting.")]
WaitOption = Annotated[
    float | None, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait this long for the service.")
]
_DEMO_TOKENS = 128
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def generate(  # one parameter an option
    prompt: Annotated[str, typer.Argument(help="What to ask; `-` reads standard input.")],
    cloud: CloudOption = None,
    pair: PairOption = None,
    draft_model: DraftModelOption = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            metavar="auto|model|ngram",
            help="`model`, `ngram` to copy from the text so far, `auto` to copy long repetitions only.",
        ),
    ] = None,
    cross_vocab: Annotated[
        bool | None,
        typer.Option("--cross-vocab/--no-cross-vocab", help="Draft with a model of another vocabulary too."),
    ] = None,
    gamma: Annotated[str | None, typer.Option(metavar="auto|N", help="Tokens to draft a round.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="auto|lockstep|pipelined|duplex|cloud", help="Who waits for whom."),
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(metavar="latency|balanced|cost", help="Your time, or the cloud's forward passes."),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the smallest set this likely.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop what is this much less likely.")] = None,
    typical_p: Annotated[float | None, typer.Option(help="Keep the ids of typical surprise.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Over 1 avoids what prompt or text has already.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from logits of tokens in the text.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted for each time they are in it.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID:BIAS", help="Added to a token's logit; may be repeated.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="No end before this many tokens.")] = None,
    bad_word: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Avoid this, as it stands and after a space; may be repeated."),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(metavar="coupled|rejection|block", help="How drafted tokens are accepted."),
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(metavar="N", help="In --json: log-probabilities, and the N likeliest.")
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="JSON|FILE", help="Write JSON that follows this schema.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Write a text that matches all of this.")
    ] = None,
    draft_sharpness: Annotated[
        float | None, typer.Option(help="How much surer than the draft model its guesses are drawn.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to write.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Tokens that the draft model can hold, prompt and text.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what the controller saw and decided, on stderr.")
    ] = False,
    remember: Annotated[
        bool | None,
        typer.Option("--remember/--no-remember", help="Keep what is learnt of a pair for the next time."),
    ] = None,
    threads: ThreadsOption = None,
    wait: WaitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a text and stream it to the terminal.

    Tokens that the laptop guessed right are shown in green on a terminal.

    For example:

    - `draftwire generate "Write a function that reverses a list"`

    - `draftwire generate "Why is the sky blue?" --temperature 0.7 --top-p 0.9 --seed 7`

    - `draftwire generate "Invent a person" --json-schema person.json`

    - `git diff | draftwire generate - --system "Write a commit message" --json`
    """
    from draftwire_edge.generate_command import GenerateJob, run_generate  # noqa: PLC0415  # keeps --help quick

    with errors_explained():
        settings = load_settings(
            cloud=cloud, pair=pair, draft_model=draft_model, drafter=drafter, gamma=gamma, mode=mode,
            prefer=prefer,
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            typical_p=typical_p, repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty, logit_bias=_biases(logit_bias), min_tokens=min_tokens,
            bad_words=tuple(bad_word) if bad_word else None, scheme=scheme, logprobs=logprobs,
            json_schema=_schema(json_schema), regex=regex,
            max_tokens=max_tokens, stop=tuple(stop) if stop else None, threads=threads, wait_s=wait,
            context_length=context_length, draft_sharpness=draft_sharpness,
            cross_vocab=cross_vocab, remember=remember,
        )  # fmt: skip
        text = _prompt(prompt)
        check_text("--system", system or "")
        asyncio.run(
            run_generate(GenerateJob(settings, text, system, raw=raw, as_json=as_json, explain=explain))
        )


def _biases(given: list[str] | None) -> dict[str, str] | None:
    """ID:BIAS pairs; what is no number is refused later, by name."""
    if not given:
        return None
    pairs = [one.partition(":") for one in given]
    for whole, (token, colon, bias) in zip(given, pairs, strict=True):
        if not (token.strip().isdecimal() and colon and bias):
            raise UserInputError("--logit-bias", f"{whole!r} is not ID:BIAS", "Write e.g. 198:-5")
    if len({token for token, _, _ in pairs}) < len(pairs):
        raise UserInputError("--logit-bias", "a token has two biases", "Give each token one")
    return {token: bias for token, _, bias in pairs}


def _schema(given: str | None) -> str | None:
    """A schema as typed, or from the file that is named."""
    if given is None or given.lstrip()[:1] in {"{", "["} or given.strip() in {"true", "false"}:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{given} cannot be read ({error})"
        raise UserInputError("--json-schema", problem, "Give a JSON schema, or a file with one") from error


def _prompt(given: str) -> str:
    """The argument, or standard input where it is ``-``; refused where it is empty or no text."""
    try:
        text = sys.stdin.read() if given == "-" else given
    except UnicodeDecodeError as error:
        raise UserInputError("PROMPT", f"it is not valid UTF-8 ({error})", "Give it as UTF-8 text") from error
    if not text:
        raise UserInputError("PROMPT", "it is empty", "Say what to write")
    check_text("PROMPT", text)
    return text


@app.command()
def doctor(
    cloud: CloudOption = None,
    pair: PairOption = None,
    draft_model: DraftModelOption = None,
    threads: ThreadsOption = None,
    exactness: Annotated[
        int, typer.Option(metavar="N", min=0, help="Compare N positions, decoded alone and in blocks.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Check models, drafter, link and handshake, and say what is wrong and what to do.

    Exit code 0 when all is well, 1 otherwise.

    For example:

    - `draftwire doctor`

    - `draftwire doctor --cloud gpu.example.org:50051 --json`

    - `draftwire doctor --exactness 200`
    """
    from draftwire_edge.doctor import examine, print_findings  # noqa: PLC0415  # keeps --help quick
    from draftwire_edge.exactness import SHORTEST  # noqa: PLC0415  # keeps --help quick

    with errors_explained():
        if 0 < exactness < SHORTEST:
            fix = f"Use at least {SHORTEST}, so that a block of every size goes through"
            raise UserInputError("--exactness", f"{exactness} positions are too few", fix)
        settings = load_settings(cloud=cloud, pair=pair, draft_model=draft_model, threads=threads)
        findings = asyncio.run(examine(settings, exactness))
        print_findings(findings, as_json=as_json)
        if not all(finding.ok for finding in findings):
            raise typer.Exit(FAILURE_EXIT)


@app.command()
def demo(
    cloud: Annotated[
        str | None,
        typer.Option("--cloud", metavar="HOST:PORT", help="Use this service instead of starting one."),
    ] = None,
    pair: PairOption = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens a prompt.")] = None,
    wait: WaitOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures to this file.")
    ] = None,
) -> None:
    """Write three texts from the cloud alone and then together, and compare.

    Starts `draftwire-cloud` on this machine unless `--cloud` names a running one.

    For example:

    - `draftwire demo`

    - `draftwire demo --cloud gpu.example.org:50051 --wait 60`
    """
    from draftwire_edge.demo import run_demo  # noqa: PLC0415  # keeps --help quick

    with errors_explained():
        # Three short texts show enough, unless somebody said how long they shall be.
        if max_tokens is None and origin_of("max_tokens") == "default":
            max_tokens = _DEMO_TOKENS
        settings = load_settings(cloud=cloud, pair=pair, max_tokens=max_tokens, wait_s=wait)
        identical = run_demo(settings, start_cloud=cloud is None, json_file=json_file)
        if not identical:
            raise typer.Exit(FAILURE_EXIT)


@app.command()
def config(as_json: JsonOption = False) -> None:
    """Show every setting, its value and where it comes from.

    Settings come from options, then DRAFTWIRE_* variables, then the TOML file, then defaults.
    """
    with errors_explained():
        settings = load_settings()
        rows = [(name, getattr(settings, name), origin_of(name)) for name in EdgeSettings.model_fields]
    if as_json:
        sys.stdout.write(json.dumps({name: {"value": _plain(v), "origin": o} for name, v, o in rows}) + "\n")
        return
    table = Table("setting", "value", "origin", title=f"file: {config_file()}", title_justify="left")
    for name, value, origin in rows:
        table.add_row(name, str(_plain(value)), origin)
    Console().print(table)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def main() -> None:
    """Entry point."""
    for command in entry_points(group="draftwire.commands"):
        app.add_typer(command.load(), name=command.name)
    app()
