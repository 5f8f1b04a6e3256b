"""What docker-compose.yml starts does start: the very commands, as processes, without containers.

Only the model, the port and the names of hosts are replaced by ones of this machine.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiny import make_tiny_pair

Process = subprocess.Popen[str]


@pytest.fixture(scope="session")
def services(repository: Any) -> dict[str, Any]:
    """The services as written, variables at their defaults."""
    text = (repository.root / "docker-compose.yml").read_text()
    return dict(yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))["services"])


@pytest.fixture(scope="module")
def port() -> int:
    """A port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(
    repository: Any, services: dict[str, Any], port: int, model: str, *more: str
) -> Iterator[Process]:
    """The cloud service's command as a process, with another model and port."""
    words = [with_port(word, port) for word in services["cloud"]["command"]]
    words[words.index("--model") + 1] = model
    process = subprocess.Popen(
        [*repository.script("draftwire-cloud"), *words, *more], cwd=repository.root,
        env=repository.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def with_port(word: str, port: int) -> str:
    return word.replace("50051", str(port))


def probe(repository: Any, services: dict[str, Any], port: int) -> tuple[int, str]:
    """Run the health check; its exit code and its answer."""
    program, *words = services["cloud"]["healthcheck"]["test"][1:]
    done = repository.run(
        [*repository.script(program), *(with_port(word, port) for word in words)], timeout_s=30
    )
    return done.returncode, done.stdout.strip()


def wait_until_healthy(repository: Any, services: dict[str, Any], cloud: Process, port: int) -> None:
    """Probe as an engine does, until the service is ready."""
    deadline = time.monotonic() + 120
    while probe(repository, services, port) != (0, "SERVING"):
        assert cloud.poll() is None, cloud.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_nobody_there_is_unhealthy(repository: Any, services: dict[str, Any], port: int) -> None:
    assert probe(repository, services, port) == (1, "UNREACHABLE")


def test_the_cloud_becomes_healthy_and_stops_when_told(
    repository: Any, services: dict[str, Any], port: int, tmp_path: Path
) -> None:
    model = make_tiny_pair(tmp_path).target_folder
    with started(repository, services, port, str(model)) as cloud:
        wait_until_healthy(repository, services, cloud, port)
        cloud.send_signal(signal.SIGTERM)
        said, notes = cloud.communicate(timeout=30)
    assert cloud.returncode == 0, notes
    assert f" on 0.0.0.0:{port}\n" in said
    assert probe(repository, services, port) == (1, "UNREACHABLE")


@pytest.mark.real
def test_the_edge_writes_the_demo_with_a_healthy_cloud(
    repository: Any, services: dict[str, Any], port: int, tmp_path: Path
) -> None:
    pair = "smollm2-self"
    words = [word.replace("cloud:50051", f"127.0.0.1:{port}") for word in services["edge"]["command"]]
    figures = tmp_path / "figures.json"
    command = [*repository.script("draftwire"), *words, "--max-tokens", "24", "--json", figures]
    with started(repository, services, port, pair, "--dtype", "float32") as cloud:
        wait_until_healthy(repository, services, cloud, port)
        done = repository.run(command, env={"DRAFTWIRE_PAIR": pair})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [text["identical"] for text in json.loads(figures.read_text())] == [True, True, True]
