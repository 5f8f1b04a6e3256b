"""How the services are started, and how much a token holds."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_models.openmp import OWN_TURNS
from draftwire_sim.bench.capacity import servers
from draftwire_sim.bench.capacity.servers import ServiceOptions, kv_bytes_per_token, running


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of services that are not really started."""
    commands: list[list[str]] = []

    def start(command: list[str], turns: int) -> AbstractContextManager[str]:
        assert turns == OWN_TURNS, "measured as a service that has its machine to itself"
        commands.append(command)
        return nullcontext(f"127.0.0.1:{len(commands)}")

    monkeypatch.setattr(servers, "started", start)
    return commands


def options_of(command: list[str]) -> dict[str, str]:
    return dict(zip(command[2::2], command[3::2], strict=True))


def test_arms_that_differ_in_what_edges_do_share_a_service(started: list[list[str]]) -> None:
    with running(ServiceOptions("tiny", "float32", 3, 100), ["batched", "unbatched", "cloud"]) as addresses:
        assert addresses == {"batched": "127.0.0.1:1", "unbatched": "127.0.0.1:2", "cloud": "127.0.0.1:1"}
    batched, unbatched = map(options_of, started)
    assert unbatched.pop("--max-batch") == "1"
    assert batched == unbatched
    assert (batched["--model"], batched["--dtype"], batched["--threads"]) == ("tiny", "float32", "3")
    # All edges at once, and what one arm has read is no help to the next.
    assert (batched["--max-sessions"], batched["--lease-s"]) == ("100", "0")


def test_few_edges_change_no_default_and_threads_are_torchs_own(started: list[list[str]]) -> None:
    with running(ServiceOptions("tiny", "auto", None, 3), ["cloud"]):
        pass
    (options,) = map(options_of, started)
    assert options["--max-sessions"] == "64"
    assert "--threads" not in options


def test_bytes_of_a_token_are_those_that_the_engine_counts(
    endless_folder: Path, endless: LoadedTarget
) -> None:
    counted = endless.target.facts.kv_bytes_per_token
    assert kv_bytes_per_token(endless_folder, "float32") == counted
    assert kv_bytes_per_token(endless_folder, "bfloat16") == counted // 2
