"""The whole command, as a user runs it: services in processes of their own, real gRPC, a tiny target."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftwire_cloud.loading import LoadedTarget
from loop.process import Finished, run
from sim.bench.capacity.fake_vllm import FakeVllm

ARMS = {"batched", "unbatched", "cloud", "vllm"}


@dataclass(frozen=True)
class Ran:
    """A run and what it left."""

    finished: Finished
    report: dict[str, Any]
    plot: Path
    vllm: FakeVllm


@pytest.fixture(scope="module")
def ran(endless_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("capacity")
    vllm, plot = FakeVllm(folder), folder / "capacity.svg"
    command = run(
        "draftwire", "bench", "capacity", "--model", str(endless_folder), "--dtype", "float32",
        "--threads", "1", "--quick", "--tokens", "24", "--json", str(folder / "capacity.json"),
        "--plot", str(plot), "--vllm-python", str(vllm.python),
    )  # fmt: skip
    finished = asyncio.run(command)
    assert finished.code == 0, finished.err + finished.out
    return Ran(finished, json.loads((folder / "capacity.json").read_text()), plot, vllm)


def test_the_summary_has_what_was_asked_for_by_number_of_edges(ran: Ran) -> None:
    summary = ran.report["summary"]
    for name in (
        "batched_vs_unbatched", "tokens_per_s", "verdict_p50_ms", "verdict_p99_ms", "passes_per_token",
        "batch_size",
    ):  # fmt: skip
        assert set(summary[name]) == {"1", "4"}, name
        assert all(value > 0 for value in summary[name].values()), name
    for n in ("1", "4"):
        assert summary["verdict_p50_ms"][n] <= summary["verdict_p99_ms"][n]
        assert summary["batched_vs_unbatched"][n] == pytest.approx(
            summary["arms"]["batched"]["tokens_per_s"][n] / summary["arms"]["unbatched"]["tokens_per_s"][n],
            rel=1e-3,
        )
    assert set(summary["arms"]) == ARMS
    assert summary["tokens_per_s"] == summary["arms"]["batched"]["tokens_per_s"]


def test_batching_shares_passes_and_turning_it_off_does_not(ran: Ran) -> None:
    arms = ran.report["summary"]["arms"]
    assert arms["batched"]["batch_size"]["1"] == 1.0
    assert arms["batched"]["batch_size"]["4"] > 1.0
    assert arms["unbatched"]["batch_size"] == {"1": 1.0, "4": 1.0}
    # The same drafts in both: what was right of them is the same. Where sessions share passes the service may
    # ask for shorter blocks, which never takes fewer passes.
    for figure in ("passes_per_token", "acceptance"):
        assert arms["batched"][figure]["1"] == arms["unbatched"][figure]["1"]
    assert arms["batched"]["passes_per_token"]["4"] >= arms["unbatched"]["passes_per_token"]["4"]
    assert arms["batched"]["passes_per_token"]["4"] < arms["cloud"]["passes_per_token"]["4"] == 1.0
    assert arms["cloud"]["acceptance"] == {"1": 0.0, "4": 0.0}


def test_memory_is_that_of_the_tokens_held(ran: Ran, endless: LoadedTarget) -> None:
    report = ran.report
    assert report["kv_bytes_per_token"] == endless.target.facts.kv_bytes_per_token
    lengths = [text["prompt_tokens"] + text["tokens"] for text in report["texts"]]
    held = report["summary"]["arms"]["batched"]["kv_bytes"]
    assert held["1"] == report["kv_bytes_per_token"] * lengths[0]
    assert held["1"] < held["4"] <= report["kv_bytes_per_token"] * sum(lengths)


def test_all_arms_write_the_targets_texts(ran: Ran) -> None:
    report = ran.report
    assert report["summary"]["identical"]
    assert report["summary"]["vllm_identical"]
    assert "every text is the target's" in ran.finished.out
    assert [(t["arm"], t["clients"]) for t in report["turns"] if not t["identical"]] == []
    assert {(t["arm"], t["clients"]): t["tokens"] for t in report["turns"]} == {
        (arm, clients): 24 * clients for arm in ARMS for clients in (1, 4)
    }
    ours = [text for turn in report["turns"] for text in turn["texts"]]
    assert len(ours) == 3 * (1 + 4)
    assert all(sum(text["committed"]) == text["tokens"] == 24 for text in ours)


def test_no_arm_finds_what_another_one_read(ran: Ran) -> None:
    assert {text["cached"] for turn in ran.report["turns"] for text in turn["texts"]} == {0}


def test_the_report_says_how_it_was_made(ran: Ran) -> None:
    report = ran.report
    assert report["options"]["plan"]["tokens"] == 24
    assert report["dtype"] == "float32"
    assert report["vllm"] == "0.0.fake"
    assert {"torch", "transformers", "draftwire"} <= set(report["versions"])
    assert report["machine"]["cores"] >= 1
    loaded = ran.vllm.notes[0]
    assert (loaded["dtype"], loaded["max_model_len"]) == ("float32", 512)


def test_the_curves_are_drawn(ran: Ran) -> None:
    drawn = ran.plot.read_text()
    assert drawn.startswith("<?xml")
    assert "edges at once" in drawn
    assert drawn.count("use xlink:href") > 8


async def test_a_long_prompt_comes_in_while_others_write(endless_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.json"
    finished = await run(
        "draftwire", "bench", "capacity", "--model", str(endless_folder), "--dtype", "float32",
        "--threads", "1", "--long-prompt", "300", "--clients", "2", "--prompts", "2", "--tokens", "40",
        "--json", str(file),
    )  # fmt: skip
    assert finished.code == 0, finished.err + finished.out
    report = json.loads(file.read_text())
    summary = report["summary"]
    assert summary["identical"]
    assert (summary["prompt_tokens"], summary["cached"]) == (300, 0)
    assert summary["verdicts"]["with"] == summary["verdicts"]["without"] > 0
    for percent in (50, 99):
        row = summary[f"verdict_p{percent}_ms"]
        assert summary[f"verdict_p{percent}_ratio"] == pytest.approx(row["with"] / row["without"], rel=1e-3)
    assert len(report["alone"]) == len(report["intruders"]) == 2
    assert {text["prompt_tokens"] for text in report["intruders"]} == {300}
    assert "with / without" in finished.out
