"""A worker process that has vLLM, here one that only bears its name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwire_protocol.errors import CloudUnavailableError, UserInputError
from draftwire_sim.bench.capacity.vllm_process import VllmOptions, VllmProcess, interpreter, running
from sim.bench.capacity.fake_vllm import FakeVllm


@pytest.fixture
def vllm(tmp_path: Path) -> FakeVllm:
    return FakeVllm(tmp_path)


def test_another_python_is_asked_whether_it_has_one(vllm: FakeVllm, tmp_path: Path) -> None:
    assert interpreter(str(vllm.python)) == str(vllm.python)
    for without in (sys.executable, str(tmp_path / "nothing")):
        with pytest.raises(UserInputError, match=r"--vllm-python: .* has no vLLM"):
            interpreter(without)


def test_of_this_python_it_is_no_error_to_have_none() -> None:
    assert interpreter(None) is None


def state_of(worker: VllmProcess) -> str:
    """As the system says: T is stopped."""
    return Path(f"/proc/{worker._process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether it holds soon: a signal is not delivered at once."""
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_it_writes_what_it_is_asked_for_and_stands_still_in_between(
    vllm: FakeVllm, endless_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    options = VllmOptions(endless_folder, "float32", 5, 100, threads=1)
    with running(str(vllm.python), options) as worker:
        assert worker.version == "0.0.fake"
        assert not Path("/proc").exists() or becomes(lambda: state_of(worker) == "T")
        seconds, outputs = worker.write([(5, 6, 7), (8, 9)], [4, 6])
        again = worker.write([(8, 9)], [6])
        pid = worker._process.pid
    assert [len(ids) for ids in outputs] == [4, 6]
    assert again[1] == outputs[1:]
    assert seconds > 0
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    loaded, asked, _ = vllm.notes
    assert (loaded["folder"], loaded["dtype"], loaded["max_model_len"]) == (
        str(endless_folder),
        "float32",
        100,
    )
    assert loaded["speculative_config"]["method"] == "ngram"
    assert loaded["speculative_config"]["num_speculative_tokens"] == 5
    # Nothing of an earlier turn helps it, as nothing of ours helps us; and our OpenMP settings are not its.
    assert loaded["enable_prefix_caching"] is False
    cores = loaded["environment"].pop("VLLM_CPU_OMP_THREADS_BIND")
    assert cores is None or len(cores.split(",")) == 1
    assert loaded["environment"] == {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_WAIT_POLICY": None}
    assert asked["params"] == [{"temperature": 0.0, "max_tokens": n, "ignore_eos": True} for n in (4, 6)]


def test_one_that_does_not_start_is_told_with_its_exit_code(vllm: FakeVllm, tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "nothing", "float32", 5, 100)
    with (
        pytest.raises(CloudUnavailableError, match="vLLM ended with exit code 3"),
        running(str(vllm.python), options),
    ):
        raise AssertionError("it cannot be ready")


def test_one_that_dies_is_told(vllm: FakeVllm, endless_folder: Path) -> None:
    options = VllmOptions(endless_folder, "no_type_of_torch", 5, 100)
    with running(str(vllm.python), options) as worker:
        with pytest.raises(CloudUnavailableError, match="vLLM ended with exit code 1"):
            worker.write([(5, 6)], [4])
        with pytest.raises(CloudUnavailableError, match="vLLM ended with exit code 1"):
            worker.write([(5, 6)], [4])
