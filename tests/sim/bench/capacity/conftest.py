"""A tiny target whose texts never end by themselves, so that all edges write equally long."""

from pathlib import Path

import pytest

from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import make_tiny_pair


@pytest.fixture(scope="session")
def endless_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_pair(tmp_path_factory.mktemp("endless"), TinyConfig(eos_lift=NEVER_ENDS)).target_folder


@pytest.fixture(scope="session")
def endless(endless_folder: Path) -> LoadedTarget:
    config = TargetConfig(endless_folder, "tiny", "float32", threads=1, self_test_positions=1)
    return load_target(config, lambda _: None)
