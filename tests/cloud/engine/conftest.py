"""Tiny random targets of many architectures, each written once a test run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwire_cloud.engine.target import Target
from tiny.architectures import Arch, make_random_target

FORMS: dict[str, tuple[torch.dtype, dict[str, str]]] = {
    # how the folder is stored, how it is loaded
    "plain": (torch.float32, {"dtype": "float32", "weights": "plain"}),
    "blocked": (torch.float32, {"dtype": "float32"}),
    "half": (torch.bfloat16, {"dtype": "float32"}),
    "bf16": (torch.bfloat16, {"dtype": "bfloat16"}),
}

LoadTarget = Callable[..., Target]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Arch, torch.dtype], Path]:
    root = tmp_path_factory.mktemp("targets")

    def make(arch: Arch, dtype: torch.dtype = torch.float32) -> Path:
        folder = root / f"{arch}-{dtype}"
        return folder if folder.exists() else make_random_target(folder, arch, dtype=dtype)

    return make


@pytest.fixture(scope="session")
def load_target(folder_of: Callable[[Arch, torch.dtype], Path]) -> LoadTarget:
    def load(arch: Arch = "qwen2", form: str = "plain", **options: object) -> Target:
        stored, how = FORMS[form]
        return Target.load(folder_of(arch, stored), device="cpu", **(how | options))  # type: ignore[arg-type]

    return load


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
