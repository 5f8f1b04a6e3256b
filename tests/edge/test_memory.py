"""What the controller learnt survives a restart, and a damaged file costs nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftwire_edge.branch import Judged
from draftwire_edge.controller import Controller, GammaPolicy, Seen
from draftwire_edge.drafter import Guess
from draftwire_edge.memory import ControllerMemory
from draftwire_protocol.messages import Mode


def taught(accepted: bool) -> Controller:  # the one thing that is taught
    controller = Controller(GammaPolicy())
    for _ in range(60):
        judged = [Judged(Guess(1, 0.75), accepted=accepted)]
        controller.observe_draft(1, 12.0, Mode.LOCKSTEP)
        controller.observe(Seen(Mode.LOCKSTEP, judged, 1, 1 + accepted, 90.0, 50.0, 51.0, 80.0))
    return controller


def test_what_was_learnt_is_there_the_next_time(tmp_path: Path) -> None:
    memory = ControllerMemory(b"target", "drafter", tmp_path)
    memory.keep(taught(accepted=False))
    fresh = Controller(GammaPolicy())
    ControllerMemory(b"target", "drafter", tmp_path).recall(fresh)
    assert fresh.alpha < 0.2
    assert fresh.draft_ms == pytest.approx(12.0)
    assert fresh.verify_ms(2) == pytest.approx(50.0)
    assert fresh.rtt_ms == 0.0  # the link may be another one


def test_new_evidence_outweighs_old(tmp_path: Path) -> None:
    memory = ControllerMemory(b"target", "drafter", tmp_path)
    memory.keep(taught(accepted=False))
    controller = Controller(GammaPolicy())
    memory.recall(controller)
    for _ in range(30):
        judged = [Judged(Guess(1, 0.75), accepted=True)]
        controller.observe(Seen(Mode.LOCKSTEP, judged, 1, 2, 90.0, 50.0, 51.0, 80.0))
    assert controller.alpha > 0.7


@pytest.mark.parametrize("other", [(b"another", "drafter"), (b"target", "another")])
def test_another_pair_knows_nothing(tmp_path: Path, other: tuple[bytes, str]) -> None:
    ControllerMemory(b"target", "drafter", tmp_path).keep(taught(accepted=False))
    fresh = Controller(GammaPolicy())
    ControllerMemory(*other, tmp_path).recall(fresh)
    assert fresh.alpha == Controller(GammaPolicy()).alpha


def damaged() -> list[str]:
    whole = json.dumps(taught(accepted=True).state())

    def with_pace(**figures: list[float]) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(whole)
        state["paces"]["apart"] |= figures
        return state

    endless = with_pace(draft_ms=[float("nan"), 1.0])
    nameless = with_pace(verify=[1e-300, 1e10, 1e-300, 1.0, 1.0])
    huge = with_pace(verify=[1.0, 1e200, 1.0, 1.0, 1.0])
    slow = with_pace(draft_ms=[1e9, 1.0])
    short = with_pace(verify=[1.0])
    sure, hollow = json.loads(whole), json.loads(whole)
    sure["survival"]["alpha"], hollow["survival"]["alpha"] = [[500.0, 1.0]], []
    return [
        "",
        "{",
        "[]",
        "null",
        "{}",
        whole[:-3],
        json.dumps(endless),
        json.dumps(short),
        '{"survival": 7}',
        *map(json.dumps, (huge, nameless, slow, sure, hollow)),
        "[" * 100_000,
        '{"survival": ' + "9" * 400 + "}",
    ]


@pytest.mark.parametrize("text", damaged(), ids=lambda text: text[:20])
def test_a_damaged_file_means_that_nothing_is_known(tmp_path: Path, text: str) -> None:
    memory = ControllerMemory(b"target", "drafter", tmp_path)
    memory.path.parent.mkdir(parents=True, exist_ok=True)
    memory.path.write_text(text)
    controller = Controller(GammaPolicy())
    memory.recall(controller)
    assert controller.state() == Controller(GammaPolicy()).state()


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    ControllerMemory(b"target", "drafter", blocked / "folder").keep(taught(accepted=True))
