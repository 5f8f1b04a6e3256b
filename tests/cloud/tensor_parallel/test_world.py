"""Who started this process, and whether that fits what was asked for."""

import pytest
import torch

from draftwire_cloud.tensor_parallel.world import World, require_devices, torchrun_world
from draftwire_protocol.errors import UserInputError


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
    }.items():
        monkeypatch.setenv(name, value)


def test_without_torchrun_there_is_no_world() -> None:
    assert torchrun_world(2) is None


@pytest.mark.usefixtures("torchrun")
def test_torchrun_says_who_we_are() -> None:
    assert torchrun_world(4) == World(rank=3, size=4, local_rank=1)


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_torchrun_and_tp_must_agree(n_ranks: int) -> None:
    message = f"torchrun started 4 processes, but the model is to be split over {n_ranks}. Say --tp 4"
    with pytest.raises(UserInputError, match=message):
        torchrun_world(n_ranks)


def test_cpu_ranks_need_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    require_devices(64)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserInputError, match=r"--tp: 4 GPUs wanted, 2 seen. Say at most --tp 2"):
        require_devices(4)


def test_apple_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UserInputError, match="--tp: a model cannot be split on mps"):
        require_devices(2)
