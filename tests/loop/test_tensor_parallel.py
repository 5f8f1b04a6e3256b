"""A target split over two processes writes the same text whichever way it is asked.

Two ranks add the halves of a product up in another order than one process does, so their logits differ in the
last bits (`test_split_target.py` says by how much), and where two tokens are almost equally good a text of
theirs may be another one. Texts are therefore compared with what the same two ranks write alone; there is no
tolerance between those.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from draftwire_cloud.engine.arena import BLOCK_TOKENS
from draftwire_cloud.loading import LoadedTarget, TargetConfig
from draftwire_cloud.server import CloudServer
from draftwire_cloud.tensor_parallel.group import RankGroup
from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import GenerationRequest, TokenEvent
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from loop.harness import CLOUD_ALONE, Edge, ScriptedDrafter, connected, serving
from loop.process import ENVIRONMENT, Service
from loop.relay import relaying
from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import TinyPair, make_tiny_pair

#: Sessions may take several blocks, and texts end where they are told to.
LONG = TinyConfig(context_length=3 * BLOCK_TOKENS, eos_lift=NEVER_ENDS)
#: Blocks of the split service: fewer than what all its sessions want.
BLOCKS = 5
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("long"), LONG, noise=(0.05,))


@pytest.fixture(scope="module")
def noisy(long_pair: TinyPair) -> Iterator[LlamaCppDrafter]:
    drafter = LlamaCppDrafter(long_pair.drafters["noisy"], context_length=512, threads=1)
    yield drafter
    drafter.close()


@pytest.fixture(scope="module", autouse=True)
def _variables_are_put_back() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOCAL_RANK", "GLOO_SOCKET_IFNAME"):
            patch.setenv(name, "")
            patch.delenv(name)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def split(long_pair: TinyPair) -> AsyncIterator[LoadedTarget]:
    """One target over two ranks, this process and one more, for all tests of texts."""
    kv_bytes = BLOCKS * BLOCK_TOKENS * 256  # of one key/value head of 16 in float32 in each of 2 layers
    config = TargetConfig(long_pair.target_folder, "split", "float32", threads=1, kv_bytes=kv_bytes, ranks=2)
    async with RankGroup(config) as group:
        loaded = await group.load(lambda _: None)
        assert loaded.target.slots.free_tokens == BLOCKS * BLOCK_TOKENS
        yield loaded


@asynccontextmanager
async def asked(split: LoadedTarget) -> AsyncIterator[tuple[CloudServer, Edge]]:
    """A service around the split target, all of its memory free."""
    try:
        async with serving(split) as server, connected(server, split) as edge:
            yield server, edge
    finally:
        for slot in list(split.target.slots._open):
            split.target.slots.release(slot)


def wish(number: int, temperature: float, n_prompt: int = 12, max_tokens: int = 40) -> GenerationRequest:
    prompt = tuple(3 + (number * 31 + i * 7) % 190 for i in range(n_prompt))
    return GenerationRequest(prompt, SamplingParams(temperature, seed=number), max_tokens=max_tokens)


def script(request: GenerationRequest, text: Sequence[int]) -> ScriptedDrafter:
    """A drafter that is wrong at every seventh token."""
    return ScriptedDrafter(text, len(request.prompt_ids), frozenset(range(4, len(text), 7)))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("mode", [Mode.LOCKSTEP, Mode.PIPELINED, Mode.DUPLEX])
async def test_a_drafted_text_is_the_one_written_alone(
    split: LoadedTarget, noisy: LlamaCppDrafter, mode: Mode, temperature: float
) -> None:
    request = wish(1, temperature)
    async with asked(split) as (_, edge):
        alone = await edge.write(request)
        drafted = await edge.write(request, noisy, GammaPolicy(4, mode))
    assert drafted.token_ids == alone.token_ids
    assert len(alone.token_ids) == request.max_tokens


async def test_many_texts_at_once_in_too_little_memory(split: LoadedTarget) -> None:
    """Five sessions that all grow into a second block, where there are five blocks."""
    requests = [wish(i, 0.9 * (i % 2), n_prompt=490 + i) for i in range(BLOCKS)]
    modes = [Mode.LOCKSTEP, Mode.PIPELINED, Mode.CLOUD, Mode.DUPLEX, Mode.LOCKSTEP]
    async with asked(split) as (server, edge):
        alone = [(await edge.write(request)).token_ids for request in requests]
        together = await asyncio.gather(
            *(
                edge.write(request, script(request, text), GammaPolicy(4, mode))
                for request, text, mode in zip(requests, alone, modes, strict=True)
            )
        )
        counts = server.engine._leases.counts
    assert [one.token_ids for one in together] == alone
    assert counts.dropped > 0
    assert counts.emptied > 0


async def test_a_text_is_resumed_where_the_link_broke(split: LoadedTarget, noisy: LlamaCppDrafter) -> None:
    request, ids = wish(2, 0.9, max_tokens=60), list[int]()
    async with asked(split) as (server, edge):
        alone = await edge.write(request)
        async with relaying(server.port) as relay, CloudChannel(f"127.0.0.1:{relay.port}") as channel:
            async for event in Edge(channel, split).events(request, noisy, GammaPolicy(3, Mode.LOCKSTEP)):
                if isinstance(event, TokenEvent):
                    ids.append(event.token_id)
                    if len(ids) in {10, 30}:
                        relay.cut()
            assert relay.connections >= 3
        assert server.engine._leases.counts.own_tokens > 0
    assert tuple(ids) == alone.token_ids


async def test_a_beginning_that_is_copied_gives_the_text_of_one_that_is_read(split: LoadedTarget) -> None:
    first, second = wish(5, 0.9, n_prompt=200), wish(5, 0.9, n_prompt=220)
    async with asked(split) as (_, edge):
        alone = await edge.write(second)
    async with asked(split) as (server, edge):
        await edge.write(first)
        assert (await edge.write(second)).token_ids == alone.token_ids
        assert server.engine._leases.counts.shared_tokens == 200


async def started(*arguments: str) -> asyncio.subprocess.Process:
    """A Python process with our packages, its output piped."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def serve(folder: Path) -> list[str]:
    """The arguments of a split service."""
    words = ["-m", "draftwire_cloud", "serve", "--model", str(folder), "--port", "0"]
    return [*words, "--dtype", "float32", "--threads", "1", "--tp", "2"]


@asynccontextmanager
async def service(*arguments: str) -> AsyncIterator[Service]:
    """A service that is gone afterwards, whatever happens."""
    process = await started(*arguments)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if not line.startswith("serving "):
            _, err = await process.communicate()
            raise AssertionError(err.decode())
        yield Service(process, line.split()[-1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def rank_of(service: Service) -> int:
    """The process of rank 1."""
    listing = await asyncio.create_subprocess_exec(
        "ps", "-axww", "-o", "pid=,ppid=,command=", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    lines = [line.split(maxsplit=2) for line in out.decode().splitlines()]
    own = [
        int(pid)
        for pid, parent, command in lines
        if parent == str(service.process.pid) and "spawn_main" in command
    ]
    assert len(own) == 1
    return own[0]


async def end_of(running: Service) -> tuple[int | None, str]:
    """How a service ended: exit code and standard error; waits for its end, but not for ever."""
    async with asyncio.timeout(60):
        _, err = await running.process.communicate()
    return running.process.returncode, err.decode()


async def kill_in_mid_text(edge: Edge, pid: int) -> None:
    """Ask for a long text and end a process at the tenth token of it."""
    seen = 0
    async for event in edge.events(wish(3, 0.9, max_tokens=1400), None, CLOUD_ALONE):
        seen += isinstance(event, TokenEvent)
        if seen == 10 and isinstance(event, TokenEvent):
            os.kill(pid, signal.SIGKILL)


async def test_a_rank_that_dies_in_mid_text_ends_the_service_with_the_reason(
    long_pair: TinyPair, split: LoadedTarget, noisy: LlamaCppDrafter
) -> None:
    async with service(*serve(long_pair.target_folder)) as running, CloudChannel(running.address) as channel:
        edge, request = Edge(channel, split), wish(3, 0.9)
        alone = await edge.write(request)
        assert (await edge.write(request, noisy, GammaPolicy(4, Mode.PIPELINED))).token_ids == alone.token_ids
        reading = asyncio.create_task(kill_in_mid_text(edge, await rank_of(running)))
        code, err = await end_of(running)
        reading.cancel()
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
    assert (code, err.count("Error: rank 1 of the split model ended with exit code -9")) == (1, 1), err
    # It was told, or is still looking for a service that would go on with its text.
    assert isinstance(outcome, (DraftwireError, asyncio.CancelledError))


async def test_ranks_that_have_nothing_to_do_notice_too(long_pair: TinyPair) -> None:
    """Rank 0 ends after rank 1, and rank 1 after rank 0."""
    words = serve(long_pair.target_folder)
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(service(*words)) for _ in range(2))
        first, second = await asyncio.gather(*starting)
        os.kill(await rank_of(first), signal.SIGKILL)
        code, err = await end_of(first)
        assert (code, err.count("Error: rank 1 of the split model ended with exit code -9")) == (1, 1), err
        await second.kill()
        # Rank 1 has inherited standard error, which ends with the last process that has it.
        await end_of(second)


@pytest.mark.nightly
async def test_torchrun_may_start_the_ranks(long_pair: TinyPair, split: LoadedTarget) -> None:
    request = wish(4, 0.9)
    words = [*TORCHRUN, *serve(long_pair.target_folder)]
    async with service(*words) as running, CloudChannel(running.address) as channel:
        text = await Edge(channel, split).write(request)
        await running.stop()
    async with asked(split) as (_, edge):
        assert (await edge.write(request)).token_ids == text.token_ids
