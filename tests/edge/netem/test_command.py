"""`draftwire netem`: what it prints, how it ends, and what it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from draftwire_edge.cli import app
from draftwire_edge.netem import Address
from draftwire_protocol.errors import UserInputError

MAIN = "from draftwire_edge.cli import main; main()"


@contextmanager
def netem(*options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "netem", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_relays_says_where_and_ends_cleanly(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=_echo_once, args=(server,), daemon=True).start()
        with netem("--to", to, "--rtt-ms", "20", "--seed", "4", "--json") as process:
            first = json.loads(line(process))
            address = Address.parse(first.pop("listen"), "")
            assert first == {
                "to": to, "profile": "custom", "seed": 4, "rtt_ms": 20.0, "jitter_ms": 0.0,
                "rate_kbit": None, "loss": 0.0, "held": False,
            }  # fmt: skip
            with socket.create_connection(address) as client:
                client.sendall(b"hello")
                assert client.recv(5) == b"hello"
            process.send_signal(number)
            rest, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(rest) == {"connections": 1, "bytes_up": 5, "bytes_down": 5}


def _echo_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(100))


def test_text_names_the_profile() -> None:
    with netem("--to", "127.0.0.1:1", "--profile", "4g", "--rtt-ms", "70") as process:
        said = line(process)
        assert said.startswith("relaying 127.0.0.1:")
        assert "-> 127.0.0.1:1, profile 4g: rtt 70 ms, jitter 15 ms, rate 13600 kbit/s, loss 0.001" in said
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        assert rest == "ended after 0 connections, 0 bytes up, 0 bytes down\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "nowhere"], "--to: 'nowhere' is not HOST:PORT. Write e.g. 127.0.0.1:50051"),
        (["--to", "127.0.0.1:0"], "--to: '127.0.0.1:0' is not HOST:PORT"),
        (["--to", "::1:5"], "--to: '::1:5' is not HOST:PORT. Write [::1]:5"),
        (["--to", "h:1", "--listen", "h"], "--listen: 'h' is not HOST:PORT. Write e.g. 127.0.0.1:0"),
        (["--to", "h:1", "--listen", "h:1"], "--to: h:1 is --listen itself"),
        (["--to", "h:1", "--rtt-ms", "-1"], "--rtt-ms: -1.0 is out of range. Use milliseconds from 0"),
        (["--to", "h:1", "--loss", "5"], "--loss: 5.0 is out of range. Use a fraction from 0 to 0.5"),
        (["--to", "h:1", "--rate-kbit", "0"], "--rate-kbit: 0.0 is out of range"),
        (["--to", "h:1", "--profile", "moon"], "--profile: there is no 'moon'. Choose one of lan,"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(options: list[str], message: str) -> None:
    finished = CliRunner().invoke(app, ["netem", *options])
    assert finished.exit_code == 2
    assert message in finished.output


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = CliRunner().invoke(app, ["netem", "--to", "127.0.0.1:1", "--listen", listen])
    assert finished.exit_code == 2
    assert f"--listen: cannot listen on {listen} (" in finished.output
    assert "Use another address, or port 0" in finished.output


def test_addresses_are_shown_as_typed() -> None:
    for text in ("127.0.0.1:80", "[::1]:50051", "gpu.example.org:1"):
        assert str(Address.parse(text, "--to")) == text
    with pytest.raises(UserInputError, match="--to"):
        Address.parse("h:٣", "--to")


def test_help_shows_examples() -> None:
    finished = CliRunner().invoke(app, ["netem", "--help"], env={"COLUMNS": "200"})
    assert finished.exit_code == 0
    assert "draftwire netem --to 127.0.0.1:50051 --listen 127.0.0.1:50052 --rtt-ms 80" in finished.output
