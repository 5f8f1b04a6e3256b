"""The laptop's command: what it passes on, what it compares, and how errors end."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge import client as client_module
from draftwire_edge import demo
from draftwire_edge.channel import CloudChannel
from draftwire_edge.cli import app
from draftwire_edge.client import EdgeClient
from draftwire_edge.config import EdgeSettings, load_settings
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.exits import errors_explained
from draftwire_edge.handshake import fetch_card
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DraftwireError,
    ModelMismatchError,
    ProtocolError,
    UserInputError,
)
from draftwire_protocol.messages import ModelCard
from loop.harness import serving
from loop.scripted_target import scripted

PIECES = [f" {i}".encode() for i in range(40)]
TEXT = list(range(3, 39))


class Demo:
    """Stands in for the demo and keeps the settings it was given."""

    def __init__(self) -> None:
        self.max_tokens: list[int] = []

    def __call__(self, settings: EdgeSettings, **_: Any) -> bool:
        self.max_tokens.append(settings.max_tokens)
        return True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Demo:
    stand_in = Demo()
    monkeypatch.setattr(demo, "run_demo", stand_in)
    return stand_in


def test_demo_refuses_zero_tokens(started: Demo) -> None:
    finished = CliRunner().invoke(app, ["demo", "--max-tokens", "0"])
    assert (finished.exit_code, started.max_tokens) == (2, [])


@pytest.mark.parametrize(
    ("options", "variables", "file", "expected"),
    [
        ([], {}, "", 128),
        ([], {}, "max_tokens = 9\n", 9),
        ([], {"DRAFTWIRE_MAX_TOKENS": "7"}, "max_tokens = 9\n", 7),
        ([], {"draftwire_max_tokens": "7"}, "", 7),
        (["--max-tokens", "5"], {"DRAFTWIRE_MAX_TOKENS": "7"}, "max_tokens = 9\n", 5),
    ],
)
def test_demo_writes_as_much_as_was_asked_for_anywhere(
    options: list[str],
    variables: dict[str, str],
    file: str,
    expected: int,
    started: Demo,
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(file)
    finished = CliRunner(env={"DRAFTWIRE_CONFIG": str(path), **variables}).invoke(app, ["demo", *options])
    assert (finished.exit_code, started.max_tokens) == (0, [expected])


class Vocabulary:
    """A tokenizer without a file behind it."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.chat_template = None
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Watched(NgramDrafter):
    """Tells whether it was closed; fails at it when told to."""

    closed = False
    fails = False

    def close(self) -> None:
        self.closed = True
        if self.fails:
            raise OSError("cannot free the model")


class Parts:
    """What a client of the stand-ins below consists of."""

    def __init__(self) -> None:
        self.drafter = Watched()
        self.vocabulary = Vocabulary(PIECES)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    """No file is read: every client gets these parts, and a prompt of three ids."""
    made = Parts()
    monkeypatch.setattr(client_module, "draft_model_path", lambda _: Path(os.devnull))
    monkeypatch.setattr(EdgeClient, "_load", lambda *_: (made.drafter, made.vocabulary))
    monkeypatch.setattr(EdgeClient, "encode", lambda *_, **__: [5, 6, 7])
    return made


def settings_for(port: int, **options: Any) -> EdgeSettings:
    return load_settings(cloud=f"127.0.0.1:{port}", drafter="ngram", **options)


def target(pieces: list[bytes] = PIECES) -> LoadedTarget:
    return scripted(pieces, TEXT, prompt_length=3)[0]


@pytest.mark.usefixtures("parts")
async def test_demo_asks_for_the_same_text_twice_and_says_of_whom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    generate = EdgeClient.generate_from

    def watching(self: EdgeClient, request: Any) -> Any:
        if request.max_tokens == 6:
            asked.append(request)
        return generate(self, request)

    @contextmanager
    def running(_: str, address: str, *, start: bool) -> Iterator[str]:
        assert not start
        yield address

    monkeypatch.setattr(demo, "running_service", running)
    monkeypatch.setattr(EdgeClient, "generate_from", watching)
    loaded = target()
    path = tmp_path / "figures.json"
    async with serving(loaded) as server:
        settings = settings_for(server.port, temperature=0.9, max_tokens=6)
        assert await asyncio.to_thread(demo.run_demo, settings, start_cloud=False, json_file=path)
    # Two runs a text with one request, and another seed for every text.
    assert asked[::2] == asked[1::2]
    seeds = [request.sampling.seed for request in asked[::2]]
    assert len(set(seeds)) == len(demo.PROMPTS)
    figures = json.loads(path.read_text())
    for figure, seed in zip(figures, seeds, strict=True):
        for run in (figure["alone"], figure["together"]):
            assert (run["model"], run["seed"]) == (loaded.card.name, seed)


async def test_a_pair_that_does_not_belong_together_is_closed(parts: Parts) -> None:
    async with serving(target([*PIECES[:-1], b"other"])) as server:
        with pytest.raises(ModelMismatchError):
            await EdgeClient(settings_for(server.port)).__aenter__()
    assert parts.drafter.closed
    assert parts.vocabulary.closed


@pytest.mark.parametrize("pieces", [PIECES, [*PIECES[:-1], b"other"]])
async def test_a_drafter_that_cannot_be_closed_leaves_nothing_else_open(
    parts: Parts, pieces: list[bytes]
) -> None:
    parts.drafter.fails = True
    async with serving(target(pieces)) as server:
        with pytest.raises(OSError, match="cannot free"):
            async with EdgeClient(settings_for(server.port)):
                pass
    assert parts.drafter.closed
    assert parts.vocabulary.closed


class Answers(CloudChannel):
    """A channel that answers with these errors in turn, then with a card."""

    def __init__(self, *errors: DraftwireError) -> None:
        super().__init__("127.0.0.1:1")
        self._errors = list(errors)

    async def get_model(
        self, *, piece_start: int = 0, piece_count: int = 0, timeout_s: float = 10.0
    ) -> ModelCard:
        if self._errors:
            raise self._errors.pop(0)
        return target().card


async def test_an_unavailable_cloud_is_waited_for() -> None:
    gone = CloudUnavailableError("Deadline Exceeded")
    assert (await fetch_card(Answers(gone, gone), wait_s=30.0)).name == target().card.name
    with pytest.raises(UserInputError, match=r"--cloud: nothing answers at 127\.0\.0\.1:1 "):
        await fetch_card(Answers(gone, gone))


@pytest.mark.parametrize("error", [DraftwireError("Method not found!"), ProtocolError("no card")])
async def test_another_service_is_refused_at_once(error: DraftwireError) -> None:
    with pytest.raises(UserInputError, match=f"--cloud: .*not a draftwire service .{error}"):
        await fetch_card(Answers(error), wait_s=30.0)


async def test_a_cloud_that_never_answers_is_an_address_to_mend() -> None:
    class Hasty(CloudChannel):
        async def get_model(
            self, *, piece_start: int = 0, piece_count: int = 0, timeout_s: float = 0.3
        ) -> ModelCard:
            return await super().get_model(timeout_s=timeout_s)

    done = asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Hasty(f"127.0.0.1:{port}") as channel:
            with pytest.raises(UserInputError, match=f"--cloud: .*127.0.0.1:{port}"):
                await fetch_card(channel)
        done.set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserInputError("--gamma", "it is odd", "Use another"), 2),
        (ModelMismatchError("differs"), 2),
        (ProtocolError("a verdict without a draft"), 1),
        (CloudUnavailableError("gone"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_say_whether_typing_something_else_helps(error: BaseException, code: int) -> None:
    with pytest.raises(typer.Exit) as ended, errors_explained():
        raise error
    assert ended.value.exit_code == code


def test_standard_input_that_is_no_text_is_refused() -> None:
    finished = CliRunner().invoke(app, ["generate", "-"], input=b"caf\xe9")
    assert finished.exit_code == 2
    assert "PROMPT" in finished.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mode", "sideways"], "--mode"),
        (["--prefer", "speed"], "--prefer"),
        (["--mode", "duplex", "--scheme", "block"], "Use --scheme coupled, or --mode lockstep"),
        (["--mode", "pipelined", "--scheme", "rejection", "--temperature", "1"], "--mode"),
        (["--drafter", "crystal-ball"], "--drafter"),
    ],
)
def test_ways_to_take_turns_that_do_not_exist_or_go_together_are_refused(
    options: list[str], says: str
) -> None:
    finished = CliRunner().invoke(app, ["generate", "Hello", *options])
    assert finished.exit_code == 2
    assert says in " ".join(finished.output.split())
