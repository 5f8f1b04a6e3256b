"""What counts as present, and when a digest is computed again."""

import os
from pathlib import Path

import pytest

from draftwire_models.cache import CACHE_DIR_VARIABLE, ModelCache, default_cache_dir
from draftwire_models.digests import DigestStore, hash_file
from draftwire_models.errors import CacheFolderError
from draftwire_models.pairs import HubFolder, ModelFile
from draftwire_models.pull import pull_model
from models.conftest import Publish, RecordingProgress


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"a model")
    return path


@pytest.fixture
def store(tmp_path: Path) -> DigestStore:
    return DigestStore(tmp_path / "digests")


def test_a_note_is_trusted_while_size_and_time_stay(store: DigestStore, model: Path) -> None:
    store.remember(model, "noted earlier")
    assert store.digest(model) == "noted earlier", "it was hashed again although nothing changed"


def test_a_changed_time_means_hashing_again(store: DigestStore, model: Path) -> None:
    store.remember(model, "noted earlier")
    os.utime(model, ns=(1, 1))
    assert store.digest(model) == hash_file(model)
    assert store.recall(model) == hash_file(model)


def test_a_changed_size_means_hashing_again(store: DigestStore, model: Path) -> None:
    state = model.stat()
    store.remember(model, "noted earlier")
    model.write_bytes(b"a longer model")
    os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.recall(model) is None


@pytest.mark.parametrize("note", ["", "{", "[]", '{"size": 7}', '{"size": 7, "sha256": 5}'])
def test_a_damaged_note_is_ignored(store: DigestStore, model: Path, note: str) -> None:
    store.remember(model, "x")
    (only,) = store.folder.iterdir()
    only.write_text(note)
    assert store.recall(model) is None
    assert store.digest(model) == hash_file(model)


def test_files_of_one_name_in_two_folders_have_two_notes(store: DigestStore, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "model.gguf" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(path.parent.name.encode())
    assert store.digest(paths[0]) != store.digest(paths[1])
    assert len(list(store.folder.iterdir())) == 2


def test_a_file_that_was_tampered_with_is_fetched_again(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    path = pull_model(published.file, cache, None, published.options())
    damaged = bytearray(published.content)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert not cache.has(published.file)
    pull_model(published.file, cache, None, published.options())
    assert path.read_bytes() == published.content


def test_a_file_put_there_by_hand_is_accepted_once_hashed(publish: Publish, cache: ModelCache) -> None:
    published = publish(parts=1)
    path = cache.path_of(published.file)
    path.parent.mkdir(parents=True)
    path.write_bytes(published.content)
    assert cache.has(published.file)


def test_a_file_of_unknown_hash_counts_only_if_we_fetched_it(cache: ModelCache) -> None:
    file = ModelFile("other.gguf", None, None, ())
    path = cache.path_of(file)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"who knows")
    assert not cache.has(file)
    cache.digests.remember(path, hash_file(path))
    assert cache.has(file)


def test_a_hub_folder_is_present_with_its_config(cache: ModelCache) -> None:
    folder = HubFolder("org/name")
    assert not cache.has(folder)
    cache.path_of(folder).mkdir(parents=True)
    assert not cache.has(folder)
    (cache.path_of(folder) / "config.json").touch()
    assert cache.has(folder)


def test_the_variable_names_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    assert ModelCache.open().root == tmp_path
    assert ModelCache.open(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.delenv(CACHE_DIR_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir().name == "draftwire"


def test_looking_writes_nothing(cache: ModelCache) -> None:
    assert not cache.has(ModelFile("a.gguf", 1, "0" * 64, ()))
    assert not cache.root.exists()


def test_an_unusable_folder_is_named_with_the_fix(tmp_path: Path, progress: RecordingProgress) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    cache = ModelCache(in_the_way / "cache")
    with (
        pytest.raises(CacheFolderError, match=r"--cache-dir or DRAFTWIRE_CACHE_DIR"),
        cache.lock("x", progress),
    ):
        pytest.fail("the lock was taken in a folder that cannot exist")


def test_a_stale_workspace_of_another_name_is_left_alone(cache: ModelCache) -> None:
    with cache.workspace("model[1].gguf") as first:
        with cache.workspace("model1.gguf") as second:
            assert first.is_dir()
            assert second.is_dir()
        assert not second.exists()
    assert not first.exists()
