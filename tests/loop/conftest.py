"""One tiny target and its drafters, loaded once for all loop tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_edge.drafters.llama import LlamaCppDrafter
from tiny.pair import TinyPair, make_tiny_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def loaded(tiny_pair: TinyPair) -> LoadedTarget:
    config = TargetConfig(tiny_pair.target_folder, "tiny", "float32", threads=1)
    return load_target(config, lambda _: None)


@pytest.fixture(scope="session")
def drafters(tiny_pair: TinyPair) -> Iterator[dict[str, LlamaCppDrafter]]:
    opened = {
        name: LlamaCppDrafter(Path(path), context_length=512, threads=1)
        for name, path in tiny_pair.drafters.items()
    }
    yield opened
    for drafter in opened.values():
        drafter.close()
