"""What is typed: refused by name before anything starts, or taken as meant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwire_sim.bench.capacity import run as runner
from draftwire_sim.bench.capacity import servers
from draftwire_sim.bench.capacity.figures import summarise
from draftwire_sim.bench.capacity.run import CapacityOptions
from draftwire_sim.bench.cli import app
from sim.bench.capacity.worlds import seen, turn, written


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--clients", "soon"], "--clients: 'soon' is no list of numbers"),
        (["--clients", ""], "--clients: '' is no list of numbers"),
        (["--clients", "0,4"], "--clients: not all of '0,4' are in [1, 256]"),
        (["--clients", "257"], "[1, 256]"),
        (["--clients", "1,4", "--long-prompt", "100"], "--clients: --long-prompt takes one"),
        (["--arms", "sideways"], "--arms: 'sideways' is none"),
        (["--arms", "vllm"], "--arms: 'vllm' has nothing of ours"),
        (["--arms", "batched", "--long-prompt", "100"], "--arms: it means nothing beside --long-prompt"),
        (["--plot", "a.png", "--long-prompt", "100"], "--plot: it means nothing beside --long-prompt"),
        (["--in-a-row", "2", "--long-prompt", "100"], "--in-a-row: it means nothing beside --long-prompt"),
        (["--in-a-row", "2"], "--in-a-row: vLLM is given all texts of a turn at once"),
        (["--in-a-row", "9"], "--in-a-row"),
        (["--vllm-python", "python", "--arms", "batched"], "--vllm-python: --arms leaves vllm out"),
        (["--plot", "capacity.tune"], "--plot: capacity.tune is no picture"),
        (["--plot", "nowhere/capacity.png"], "--plot: there is no folder nowhere"),
        (["--json", "nowhere/capacity.json"], "--json: there is no folder nowhere"),
        (["--json", "."], "--json: . is a folder"),
        (["--gamma", "0"], "--gamma"),
        (["--acceptance", "1.1"], "--acceptance"),
        (["--prompts", "13"], "--prompts"),
        (["--tokens", "1"], "--tokens"),
        (["--draft-ms", "-1"], "--draft-ms"),
        (["--dtype", "int8"], "--dtype"),
        (["--threads", "0"], "--threads"),
        (["--long-prompt", "0"], "--long-prompt"),
        (["--model", "no-such-model", "--arms", "batched"], "--model"),
        (["--vllm-python", "no-such-python", "--quick", "--clients", "1"], "--vllm-python"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused_by_name(
    options: list[str], says: str, endless_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr(servers, "running", never)
    if "--model" not in options:
        options = [*options, "--model", str(endless_folder)]
    finished = CliRunner().invoke(app, ["capacity", *options])
    assert finished.exit_code == 2, finished.output
    assert says in " ".join(finished.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("missing", "says"),
    [("torch", "the cloud's half is not installed"), ("matplotlib", "--plot needs matplotlib")],
)
def test_half_an_installation_is_told_before_anything_starts(
    missing: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    finished = CliRunner().invoke(app, ["capacity", "--plot", "never.png"])
    assert finished.exit_code == 1
    shown = " ".join(finished.output.split())
    assert says in shown
    assert "pip install" in shown
    assert "Traceback" not in shown


def asked_for(options: list[str], monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]) -> Any:
    """The options as the command understood them, and what it said."""
    taken: list[CapacityOptions] = []

    def run(chosen: CapacityOptions, _show: object) -> dict[str, Any]:
        taken.append(chosen)
        return report

    monkeypatch.setattr(runner, "run", run)
    return CliRunner().invoke(app, ["capacity", *options]), taken


def made(*, identical: bool = True, seconds: float = 1.0) -> dict[str, Any]:
    texts = [written([seen(1.0), seen(2.0, 12_345, 0.25)])]
    turns = [
        turn(arm, clients, seconds, texts, identical=identical)
        for arm in ("batched", "unbatched")
        for clients in (1, 16)
    ]
    report = {"summary": summarise(turns, 100), "options": {"model": "tiny"}, "dtype": "float32"}
    return report | {"vllm": "not installed"}


@pytest.mark.parametrize(
    ("options", "clients", "prompts", "tokens"),
    [
        ([], (1, 2, 4, 8, 16, 32), 3, 64),
        (["--quick"], (1, 4), 1, 32),
        (["--quick", "--tokens", "16", "--clients", "2"], (2,), 1, 16),
        (["--long-prompt", "100"], (8,), 3, 128),
        (["--quick", "--long-prompt", "100"], (8,), 1, 32),
        (["--clients", "4,1,4", "--prompts", "2"], (4, 1), 2, 64),
    ],
)
def test_what_is_left_out_has_a_default(
    options: list[str], clients: tuple[int, ...], prompts: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (taken,) = asked_for(options, monkeypatch, made())
    assert (taken.plan.clients, taken.plan.prompts, taken.plan.tokens) == (clients, prompts, tokens)
    assert taken.service.sessions == max(clients) + 1


def test_a_narrow_screen_cuts_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    finished, _ = asked_for([], monkeypatch, made())
    assert finished.exit_code == 0
    assert "…" not in finished.output
    assert finished.output.count("12346.0") == 4
    assert finished.output.count("250 / 250") == 4
    assert "every text is the target's" in finished.output


def test_another_text_is_said_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    finished, _ = asked_for([], monkeypatch, made(identical=False))
    assert finished.exit_code == 1
    assert "DIFFERENT texts" in finished.output
