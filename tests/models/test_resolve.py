"""From what was typed to a model on disk."""

import shutil
from pathlib import Path

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.errors import (
    CorruptModelError,
    ModelMissingError,
    UnknownPairError,
    UnreadableModelError,
)
from draftwire_models.resolve import resolve_draft, resolve_target
from models.conftest import RecordingProgress
from tiny.pair import TinyPair, make_tiny_pair


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), noise=(0.0,))


def test_paths_are_taken_as_they_are(tiny: TinyPair, cache: ModelCache) -> None:
    assert resolve_draft(tiny.drafters["perfect"], cache) == tiny.drafters["perfect"]
    assert resolve_draft(str(tiny.drafters["perfect"]), cache) == tiny.drafters["perfect"]
    assert resolve_target(tiny.target_folder, cache) == tiny.target_folder
    assert resolve_target(tiny.drafters["perfect"], cache) == tiny.drafters["perfect"]
    assert not cache.root.exists()


def test_a_pair_that_is_not_fetched_says_how(cache: ModelCache, progress: RecordingProgress) -> None:
    with pytest.raises(ModelMissingError, match=r"draftwire models pull smollm2-self --draft-only"):
        resolve_draft("smollm2-self", cache, progress=progress)
    with pytest.raises(ModelMissingError, match=r"draftwire models pull qwen2\.5 --target-only"):
        resolve_target("qwen2.5", cache)
    assert not cache.root.exists()


def test_a_wrong_name_is_reported_under_its_argument(cache: ModelCache) -> None:
    with pytest.raises(UnknownPairError, match=r"--pair: 'qwen2\.5-code' .*Did you mean 'qwen2\.5-coder'"):
        resolve_draft("qwen2.5-code", cache)
    with pytest.raises(UnknownPairError, match=r"MODEL: 'no/such/path' is no known .*no existing path"):
        resolve_target("no/such/path", cache, argument="MODEL")


def test_a_corrupt_file_is_refused(tiny: TinyPair, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.drafters["perfect"].read_bytes()[:-1000])
    for resolve in (resolve_draft, resolve_target):
        with pytest.raises(CorruptModelError, match="truncated"):
            resolve(cut)


def test_folders_that_are_no_models_are_refused(tiny: TinyPair, tmp_path: Path) -> None:
    with pytest.raises(UnreadableModelError, match=r"Is a directory\. .*one GGUF file"):
        resolve_draft(tiny.target_folder)
    with pytest.raises(
        UnreadableModelError, match=r"no config\.json\. .*a GGUF file or a safetensors folder"
    ):
        resolve_target(tmp_path)


def test_paths_that_cannot_be_looked_at_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), Path("~nobody-of-this-name/model.gguf")):
        with pytest.raises(UnreadableModelError, match="Check the path"):
            resolve_draft(path)


def test_a_pairs_name_wins_over_a_folder_of_that_name(
    tiny: TinyPair, tmp_path: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny.target_folder, tmp_path / "smollm2")
    with pytest.raises(ModelMissingError):
        resolve_target("smollm2", cache)
    assert resolve_target("./smollm2", cache) == Path("smollm2")
