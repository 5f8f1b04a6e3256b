"""Two replicas behind one front, as processes of Ray's: the same texts, whatever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from draftwire_cloud.health import ask_health
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafter import Drafter
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import GenerationRequest, TokenEvent
from draftwire_protocol.messages import Finished, Mode, Open, Opened, Verdict
from draftwire_protocol.params import SamplingParams
from loop.harness import Edge, ScriptedDrafter, connected, serving
from loop.process import run
from loop.replica_service import ReplicaService, is_alive, listening, replica_service, until
from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import TinyPair, make_tiny_pair

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

SAMPLINGS = {"greedy": SamplingParams(), "sampled": SamplingParams(0.9, seed=4)}
#: 127.0.0.1, plain, within IPv6, and ::1, as the kernel writes them.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("endless"), TinyConfig(eos_lift=NEVER_ENDS))


@pytest.fixture(scope="module")
def endless(pair: TinyPair) -> LoadedTarget:
    return load_target(TargetConfig(pair.target_folder, "tiny", "float32", threads=1), lambda _: None)


@pytest.fixture(scope="module")
def drafter(pair: TinyPair) -> Iterator[LlamaCppDrafter]:
    opened = LlamaCppDrafter(pair.drafters["noisy"], context_length=512, threads=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def service(pair: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaService]:
    notes = tmp_path_factory.mktemp("notes") / "stderr"
    with replica_service(pair.target_folder, notes, replicas=2) as running:
        yield running


class CountingChannel(CloudChannel):
    """Counts the streams that an edge needed."""

    streams = 0

    def decode(self) -> DecodeStream:
        self.streams += 1
        return super().decode()


@pytest.fixture
async def channel(service: ReplicaService) -> AsyncIterator[CountingChannel]:
    async with CountingChannel(service.address) as opened:
        yield opened


async def cloud_alone(loaded: LoadedTarget, wanted: list[GenerationRequest]) -> list[tuple[int, ...]]:
    """What a service without replicas writes by itself."""
    async with serving(loaded) as server, connected(server, loaded) as edge:
        return [(await edge.write(request)).token_ids for request in wanted]


@pytest.mark.parametrize("mode", [Mode.LOCKSTEP, Mode.PIPELINED, Mode.CLOUD])
@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_texts_equal_the_cloud_alone(
    endless: LoadedTarget, drafter: LlamaCppDrafter, channel: CountingChannel, sampling: str, mode: Mode
) -> None:
    wanted = [GenerationRequest((60 + i, 61), SAMPLINGS[sampling], max_tokens=40) for i in range(4)]
    alone = await cloud_alone(endless, wanted)
    # The real draft model serves one text at a time.
    drafters: list[Drafter] = [drafter, *map(mostly_right, alone[1:])]
    together = await asyncio.gather(
        *(
            Edge(channel, endless).write(one, None if mode is Mode.CLOUD else used, GammaPolicy(4, mode))
            for one, used in zip(wanted, drafters, strict=True)
        )
    )
    assert [one.token_ids for one in together] == alone
    assert len(set(alone)) == len(wanted)


def mostly_right(text: tuple[int, ...]) -> ScriptedDrafter:
    """Drafts a text whose prompt has two tokens, wrong now and then."""
    return ScriptedDrafter(text, 2, frozenset(range(3, len(text), 7)), wrong_token=5)


async def turn(channel: CloudChannel, session_id: str, prompt: tuple[int, ...]) -> tuple[int, list[int]]:
    """One turn of a chat: prompt tokens that were cached, and the answer."""
    stream = channel.decode()
    await stream.send(Open(session_id, prompt, SamplingParams(), 8, Mode.CLOUD))
    cached = -1
    ids: list[int] = []
    while not isinstance(message := await stream.receive(), Finished):
        if isinstance(message, Opened):
            cached = message.cached
        elif isinstance(message, Verdict):
            ids += message.ids
    return cached, ids


async def test_the_second_turn_finds_its_keys_and_values(channel: CountingChannel) -> None:
    prompts = {f"chat-{i}": tuple(range(10 + i, 50 + i)) for i in range(6)}
    for name, prompt in prompts.items():
        cached, answer = await turn(channel, name, prompt)
        assert cached == 0
        prompts[name] = (*prompt, *answer, 77, 78)
    # Another order, so that taking turns among replicas would not do.
    for name in ("chat-3", "chat-0", "chat-1", "chat-5", "chat-4", "chat-2"):
        cached, _ = await turn(channel, name, prompts[name])
        assert cached == 40 + 8 - 1, name  # the last token of a text has not been fed


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_a_killed_replica_costs_no_token_and_comes_back(
    endless: LoadedTarget,
    service: ReplicaService,
    channel: CountingChannel,
    sampling: str,
) -> None:
    """Both die in turn, so every text has lost its replica at least once."""
    wanted = [GenerationRequest((60 + i, 61), SAMPLINGS[sampling], max_tokens=100) for i in range(4)]
    alone = await cloud_alone(endless, wanted)
    before = channel.streams
    arrived, go_on = asyncio.Semaphore(0), [asyncio.Event(), asyncio.Event()]

    async def write(request: GenerationRequest, text: tuple[int, ...]) -> tuple[int, ...]:
        ids: list[int] = []
        drafter = mostly_right(text)
        policy = GammaPolicy(2, Mode.LOCKSTEP)  # the cloud is never ahead of what is seen here
        async for event in Edge(channel, endless).events(request, drafter, policy):
            if isinstance(event, TokenEvent):
                ids.append(event.token_id)
                if len(ids) in {20, 60}:
                    arrived.release()
                    await go_on[len(ids) // 60].wait()
        return tuple(ids)

    writing = asyncio.gather(*map(write, wanted, alone))
    for replica, event in enumerate(go_on, start=1):
        for _ in wanted:
            await arrived.acquire()
        times = len(service.pids(replica))
        os.kill(service.pids(replica)[-1], signal.SIGKILL)
        event.set()
        if replica == 1:
            await asyncio.to_thread(service.wait_ready, replica, times + 1)
        assert ask_health(service.address, 5.0) == "SERVING"
    assert await writing == alone
    assert channel.streams - before >= 2 * len(wanted)
    again = await asyncio.to_thread(service.wait_ready, 2, times + 1)
    assert is_alive(again)
    assert len(set(service.pids(2))) == len(service.pids(2))


async def test_it_talks_to_this_machine_alone_and_reports_nothing(service: ReplicaService) -> None:
    family = service.family()
    addresses = {address for pid in family for address in listening(pid)}
    assert addresses
    assert addresses <= LOOPBACK
    raylet = next(pid for pid, line in family.items() if "/raylet " in line)
    environment = Path(f"/proc/{raylet}/environ").read_text().split("\0")
    assert "RAY_USAGE_STATS_ENABLED=0" in environment
    heads = [pid for pid, line in family.items() if "dashboard/dashboard.py" in line]
    assert [address for pid in heads for address in listening(pid)] == []


async def test_the_commands_see_one_service(service: ReplicaService, pair: TinyPair) -> None:
    drafter = str(pair.drafters["noisy"])
    seen = await run("draftwire", "doctor", "--cloud", service.address, "--draft-model", drafter, "--json")
    assert seen.code == 0, seen.out


def test_nothing_is_left_when_it_ends(service: ReplicaService) -> None:
    """The last one of the module: it stops the service."""
    family = service.family()
    assert len(family) > 5
    assert service.process.stdout is not None
    assert service.stop() == 0
    assert service.process.stdout.read() == ""
    until(lambda: not any(map(is_alive, family)))


def test_no_replica_outlives_a_front_that_was_killed(pair: TinyPair, tmp_path: Path) -> None:
    """Two small agents of Ray's look for their parent only once a minute; everything else goes at once."""
    with replica_service(pair.target_folder, tmp_path / "stderr", replicas=1) as service:
        family = service.family()
        assert service.pids(1)[0] in family
        service.process.kill()
        service.process.wait()
        until(lambda: not any(is_alive(pid) for pid, line in family.items() if "Agent" not in line))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--replicas", "2"), "--replicas: 2 replicas need Ray. Add --engine ray"),
        (("--engine", "ray", "--tp", "2"), "--tp: replicas cannot be split. Leave --tp out"),
    ],
)
async def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], said: str) -> None:
    refused = await run("draftwire-cloud", "serve", *arguments)
    assert refused.code == 2
    assert said in refused.err


async def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwire_cloud.replicas import cluster
    from draftwire_protocol.errors import UserInputError

    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    with pytest.raises(UserInputError, match=r"--engine: ray is not installed. Run pip install"):
        cluster.require_ray()
