"""What Prometheus is told by a real service, against what the edges saw."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Never
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from draftwire_cloud.engine.arena import BLOCK_TOKENS
from draftwire_cloud.engine.slots import SlotStore
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_cloud.metrics import SHOWN, Observed, ServerCollector
from draftwire_cloud.metrics_server import exposing
from draftwire_cloud.rpc_counts import RpcCounter
from draftwire_cloud.server import Address, CloudServer
from draftwire_edge.channel import DecodeStream
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafter import Drafter
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.handshake import fetch_card
from draftwire_protocol import codec
from draftwire_protocol.errors import DraftwireError, OverloadedError, ProtocolError, UserInputError
from draftwire_protocol.messages import Draft, EdgeMessage, Finished, Mode, Open, Verdict
from draftwire_protocol.params import SamplingParams
from loop.harness import Edge, connected
from loop.process import run, start
from loop.scripted_target import ScriptedTarget, scripted
from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import TinyPair, make_tiny_pair

PIECES = [f" {i}".encode() for i in range(40)]
PROMPT = (5, 6, 7)
SCRIPT = [3, 4, 5] * 100
MIB = 1 << 20


@dataclass
class Scrape:
    """One answer of ``/metrics``."""

    text: str

    def all(self, name: str) -> dict[str, float]:
        """By the value of the label, "" where there is none."""
        families = list(text_string_to_metric_families(self.text))
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        assert samples, name
        return {"".join(sample.labels.values()): sample.value for sample in samples}

    def __getitem__(self, name: str) -> float:
        return sum(self.all(f"draftwire_{name}").values())


@dataclass
class Metered:
    """A service and its metrics."""

    server: CloudServer
    port: int

    async def scrape(self) -> Scrape:
        return Scrape(await read(self.port))

    async def becomes(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """What is true in the end; a test that waits in vain is ended by its timeout."""
        while not holds(now := await self.scrape()):  # noqa: ASYNC110  # what is asked is on another thread
            await asyncio.sleep(0.02)
        return now


async def read(port: int) -> str:
    def get() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


@asynccontextmanager
async def metered(loaded: LoadedTarget, limits: EngineLimits | None = None) -> AsyncIterator[Metered]:
    rpcs, said = RpcCounter(), list[str]()
    with exposing(Address(port=0), said.append) as registry:
        port = int(said[0].removesuffix("/metrics").rpartition(":")[2])
        limits = limits or EngineLimits()
        async with CloudServer(loaded, Address(port=0), limits, grace_s=0.5, rpcs=rpcs) as server:
            registry.register(ServerCollector(Observed(server.engine, rpcs.counts, loaded)))
            yield Metered(server, port)


def threes() -> tuple[LoadedTarget, ScriptedTarget]:
    return scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))


async def test_every_metric_is_there_from_the_start() -> None:
    async with metered(threes()[0]) as service:
        families = {one.name: one for one in text_string_to_metric_families((await service.scrape()).text)}
    shown = {one.name.removesuffix("_total"): one for one in SHOWN}
    assert families.keys() == shown.keys() | {"draftwire_model_info"}
    for name, one in shown.items():
        assert (families[name].type, families[name].documentation) == (one.kind, one.meaning)
        # Errors alone have no series before the first.
        assert families[name].samples or name == "draftwire_rpc_errors"
    assert families["draftwire_model_info"].samples[0].labels == {
        "name": "scripted", "architecture": "Scripted", "dtype": "float32", "exact": "true",
    }  # fmt: skip


@pytest.mark.parametrize("mode", [Mode.LOCKSTEP, Mode.PIPELINED, Mode.DUPLEX, Mode.CLOUD])
async def test_the_figures_are_those_the_edges_know(
    loaded: LoadedTarget, drafters: dict[str, Drafter], mode: Mode
) -> None:
    """Three texts, one after another, at two temperatures and with an end in mid block."""
    requests = [
        GenerationRequest(tuple(range(3 + 50 * i, 40 + 50 * i)), SamplingParams(temperature=t, seed=i), 37)
        for i, t in enumerate((0.0, 0.8, 1.0))
    ]
    drafter = None if mode is Mode.CLOUD else drafters["noisy"]
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        results = [await edge.write(request, drafter, GammaPolicy(4, mode)) for request in requests]
        seen = await service.becomes(lambda now: not now["open_streams"])
    timings = [one.timings for one in results]
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "target_passes"):
        assert seen[f"{name}_total"] == sum(getattr(one, name) for one in timings), name
    places = Counter[str]()
    for one in timings:
        places.update({str(place): n for place, n in enumerate(one.num_accepted_tokens_per_pos)})
    accepted = seen.all("draftwire_num_accepted_tokens_per_pos_total")
    assert len(accepted) == 64
    assert {place: n for place, n in accepted.items() if n} == {place: n for place, n in places.items() if n}
    assert (seen["num_accepted_tokens_total"] > 0) == (mode is not Mode.CLOUD)
    assert seen["output_tokens_total"] == sum(len(one.token_ids) for one in results) > 0
    fills = Counter(source for one in results for source in one.sources)["fill"]
    assert seen.all("draftwire_fill_tokens_total")[mode.value if mode.fills else "duplex"] == fills
    assert seen["fill_tokens_total"] == fills
    assert seen["sessions_opened_total"] == seen.all("draftwire_rpcs_total")["Decode"] == 3
    assert seen["prompt_tokens_read_total"] == sum(len(one.prompt_ids) for one in requests)
    assert (seen["open_sessions"], seen["parked_sessions"]) == (0, 3)
    assert seen["first_verdict_seconds_count"] == 3
    assert seen["verdict_seconds_count"] == seen["queue_seconds_count"] == seen["target_passes_total"] - 3
    assert seen["queue_seconds_sum"] < seen["verdict_seconds_sum"]
    assert "draftwire_rpc_errors_total{" not in seen.text


async def test_bytes_are_those_of_the_messages() -> None:
    loaded, _ = threes()
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        before = await service.scrape()
        stream = await begin(edge, "raw")
        received, last = [await stream.receive(), await stream.receive()], Draft(0, 4, (4, 5, 9))
        await stream.send(last)
        received.append(await stream.receive())
        seen = await service.scrape()
    sent: list[EdgeMessage] = [opening("raw"), last]
    up = seen.all("draftwire_received_bytes_total")
    down = seen.all("draftwire_sent_bytes_total")
    assert up["Decode"] == sum(codec.encode_edge(one).ByteSize() for one in sent)
    assert down["Decode"] == sum(codec.encode_cloud(one).ByteSize() for one in received)
    assert down["GetModel"] == down["GetTokenizer"] == before["sent_bytes_total"] == 0


async def test_passes_tell_their_sessions_and_rows() -> None:
    loaded, target = threes()
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        writing = [edge.write(GenerationRequest(PROMPT, max_tokens=20)) for _ in range(3)]
        await asyncio.gather(*writing)
        seen = await service.scrape()
    assert seen["pass_rows_sum"] == target.fed == 3 * (3 + 19)
    assert seen["passes_total"] == seen["pass_seconds_count"] == seen["pass_rows_count"]
    assert seen["passes_total"] == seen["batch_size_sessions_count"]
    assert seen["batch_size_sessions_sum"] == seen["target_passes_total"] == 60
    buckets = list(seen.all("draftwire_pass_seconds_bucket").values())
    assert all(low <= high for low, high in pairwise(buckets))
    assert buckets[-1] == seen["passes_total"]
    assert seen["failed_passes_total"] == 0


async def test_two_services_of_one_process_do_not_meet() -> None:
    first, second = threes()[0], threes()[0]
    second = replace(second, card=replace(second.card, name="another"))
    async with metered(first) as one, metered(second) as two:
        async with connected(one.server, first) as edge:
            await edge.write(GenerationRequest(PROMPT, max_tokens=7))
        seen = [await one.scrape(), await two.scrape()]
    assert [now["output_tokens_total"] for now in seen] == [7, 0]
    assert 'name="scripted"' in seen[0].text
    assert 'name="another"' in seen[1].text


async def test_a_taken_port_is_an_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(UserInputError, match=rf"--metrics-port: .*127.0.0.1:{port}.*Choose"),
            exposing(Address(port=port), lambda _: None),
        ):
            pass


async def test_the_port_is_free_again_afterwards() -> None:
    async with metered(threes()[0]) as service:
        pass
    with exposing(Address(port=service.port), lambda _: None):
        assert await read(service.port) == ""  # it answers before there is anything to show


def opening(session_id: str, **fields: Any) -> Open:
    return replace(Open(session_id, PROMPT, SamplingParams(), 20, Mode.LOCKSTEP), **fields)


async def begin(edge: Edge, session_id: str, **fields: Any) -> DecodeStream:
    """A stream that has sent its Open."""
    stream = edge.channel.decode()
    await stream.send(opening(session_id, **fields))
    return stream


@pytest.mark.parametrize("reason", ["sessions", "queue", "memory"])
async def test_who_is_not_let_in_is_counted_by_reason(reason: str) -> None:
    loaded, target = threes()
    limits = EngineLimits()

    def full(_: int) -> Never:
        raise OverloadedError("no block is left")

    if reason == "sessions":
        limits = replace(limits, max_sessions=0)
    elif reason == "queue":
        limits = replace(limits, max_queue_s=-1.0)
    else:
        target.slots.open = full  # type: ignore[method-assign,assignment]
    async with metered(loaded, limits) as service, connected(service.server, loaded) as edge:
        with pytest.raises(OverloadedError):
            await (await begin(edge, "refused")).receive()
        seen = await service.becomes(lambda now: not now["open_streams"])
    refused = seen.all("draftwire_admissions_refused_total")
    assert refused == {"sessions": 0, "queue": 0, "memory": 0} | {reason: 1}
    assert seen.all("draftwire_rpc_errors_total") == {"RESOURCE_EXHAUSTED": 1}
    assert seen["sessions_opened_total"] == 0


async def test_rpcs_are_counted_by_how_they_ended() -> None:
    loaded, _ = threes()

    def bug() -> bytes:
        raise RuntimeError("bug")

    loaded = replace(loaded, pack_tokenizer=bug)
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        await fetch_card(edge.channel)
        broken = await begin(edge, "broken", prompt_ids=(99,))
        with pytest.raises(ProtocolError):
            await broken.receive()
        with pytest.raises(DraftwireError):
            await edge.channel.get_tokenizer(max_bytes=1 << 20)
        gone = await begin(edge, "gone")
        await gone.receive()
        open_now = await service.scrape()
        gone.cancel()
        seen = await service.becomes(lambda now: not now["open_streams"])
    assert (open_now["open_streams"], open_now["open_sessions"]) == (1, 1)
    assert (seen["open_sessions"], seen["parked_sessions"]) == (0, 1)
    assert seen.all("draftwire_rpc_errors_total") == {"INVALID_ARGUMENT": 1, "UNKNOWN": 1, "CANCELLED": 1}
    assert seen.all("draftwire_rpcs_total") == {"GetModel": 1, "GetTokenizer": 1, "Decode": 2}


async def test_a_pass_that_fails_is_none() -> None:
    loaded, target = threes()

    def fail(_: Any) -> Never:
        raise RuntimeError("boom")

    target.forward = fail  # type: ignore[method-assign,assignment]
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        with pytest.raises(DraftwireError, match="boom"):
            await (await begin(edge, "raw")).receive()
        seen = await service.scrape()
    assert (seen["passes_total"], seen["failed_passes_total"], seen["output_tokens_total"]) == (0, 1, 0)
    assert seen.all("draftwire_rpc_errors_total") == {"INTERNAL": 1}


async def test_the_next_turn_hits_its_own_beginning_and_others_share_theirs(loaded: LoadedTarget) -> None:
    system = tuple(3 + i % 150 for i in range(200))
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        await edge.write(GenerationRequest((*system, 4), max_tokens=5))
        await edge.write(GenerationRequest((*system, 5), max_tokens=5))
        for prompt in (PROMPT * 10, PROMPT * 10 + (9,), (8, 9)):
            turn = await begin(edge, "turns", prompt_ids=prompt, mode=Mode.CLOUD, max_tokens=1)
            while not isinstance(await turn.receive(), Finished):
                pass
            await service.becomes(lambda now: not now["open_streams"])
        seen = await service.scrape()
    assert seen.all("draftwire_prefix_hits_total") == {"own": 1, "shared": 1}
    assert seen.all("draftwire_prefix_tokens_reused_total") == {"own": 30, "shared": 200}
    assert seen["prompt_tokens_read_total"] == 201 + 1 + 30 + 1 + 2


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> LoadedTarget:
    """A target whose texts are longer than a block, in a store of three blocks."""
    config = TinyConfig(context_length=2 * BLOCK_TOKENS, eos_lift=NEVER_ENDS)
    folder = make_tiny_pair(tmp_path_factory.mktemp("long"), config).target_folder
    loaded = load_target(TargetConfig(folder, "long", "float32", threads=1), lambda _: None)
    layout = loaded.target.slots.layout
    loaded.target.slots = SlotStore(layout, 3 * BLOCK_TOKENS * layout.bytes_per_token)
    return loaded


async def test_memory_that_runs_out_shows(long: LoadedTarget) -> None:
    """Two sessions that both grow into a second block."""
    block_bytes = BLOCK_TOKENS * long.target.slots.layout.bytes_per_token
    requests = [
        GenerationRequest(tuple(3 + (i + j) % 190 for j in range(490)), max_tokens=60) for i in (0, 7)
    ]
    async with metered(long) as service, connected(service.server, long) as edge:
        results = await asyncio.gather(*map(edge.write, requests))
        seen = await service.becomes(lambda now: not now["open_streams"])
        leases = service.server.engine.lease_counts
    assert [len(one.token_ids) for one in results] == [60, 60]
    assert seen["sessions_emptied_total"] == seen["sessions_rebuilt_total"] == leases.emptied > 0
    assert seen["rebuilt_tokens_total"] > 490
    assert seen["prompt_tokens_read_total"] == 980
    assert seen["failed_passes_total"] > 0
    assert seen["kv_budget_bytes"] == 3 * block_bytes
    assert seen["kv_used_bytes"] == seen["kv_used_blocks"] * block_bytes
    assert seen["kv_used_blocks"] + seen["kv_free_blocks"] == seen["kv_peak_blocks"] == 3


async def test_a_verdict_sent_twice_counts_once() -> None:
    loaded, _ = threes()
    async with metered(loaded) as service, connected(service.server, loaded) as edge:
        stream = await begin(edge, "raw")
        received = [await stream.receive(), await stream.receive()]
        for _ in range(2):
            await stream.send(Draft(0, 4, (4, 5)))
            received.append(await stream.receive())
        seen = await service.scrape()
    assert [one.start for one in received if isinstance(one, Verdict)] == [3, 4, 4]
    assert (seen["num_drafts_total"], seen["num_accepted_tokens_total"]) == (1, 2)
    assert (seen["output_tokens_total"], seen["target_passes_total"]) == (4, 2)


async def test_serve_shows_its_metrics_where_it_says(tiny_pair: TinyPair) -> None:
    serve = (
        "serve", "--model", str(tiny_pair.target_folder), "--port", "0", "--dtype", "float32",
        "--threads", "1",
    )  # fmt: skip
    process = await start("draftwire-cloud", *serve, "--metrics-port", "0")
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        while not (line := (await process.stderr.readline()).decode()).startswith("metrics on "):
            assert line, "it ended"
        port = int(line.removesuffix("/metrics\n").rpartition(":")[2])
        assert (await process.stdout.readline()).startswith(b"serving ")
        while "draftwire_model_info" not in (text := await read(port)):
            pass
        taken = await run("draftwire-cloud", *serve, "--metrics-port", str(port))
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0
    assert Scrape(text)["kv_budget_bytes"] == 2048 * MIB
    assert taken.code == 2
    assert taken.out == ""
    assert f"--metrics-port: cannot listen on 127.0.0.1:{port}" in taken.err
