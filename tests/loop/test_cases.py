"""Small inputs that broke other systems, through the real service; letters as in the list of cases."""

import asyncio
from collections.abc import Sequence

import pytest

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_edge.channel import DecodeStream
from draftwire_edge.controller import Controller, GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import DoneEvent, GenerationRequest, GenerationResult, NoticeEvent, TokenEvent
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import (
    ContextOverflowError,
    OverloadedError,
    ProtocolError,
    StaleDraftError,
    UserInputError,
)
from draftwire_protocol.messages import Draft, Finished, Mode, Open, Opened, SetMode, Verdict
from draftwire_protocol.params import SamplingParams
from loop.harness import Edge, ScriptedDrafter, connected, serving
from loop.scripted_target import scripted
from tiny.config import TinyConfig
from tiny.pair import TinyPair, make_tiny_pair

EOS, STOP = 1, 2
PIECES = [f" {i}".encode() for i in range(40)]
PIECES[STOP] = b"STOP"
PIECES[30:34] = [bytes([byte]) for byte in "😀".encode()]
PIECES[34:38] = [b"\n", b"\nUs", b"er", b":"]
PROMPT = (5, 6, 7)


async def write_scripted(
    script: Sequence[int],
    *,
    gamma: int,
    max_tokens: int = 50,
    stop: tuple[str, ...] = (),
    wrong_at: Sequence[int] = (),
) -> tuple[GenerationResult, list[str], ScriptedDrafter]:
    """One text over the real service; also each shown piece and the drafter."""
    loaded, _ = scripted(PIECES, script, prompt_length=len(PROMPT), eos=(EOS,))
    drafter = ScriptedDrafter(script, len(PROMPT), frozenset(wrong_at))
    shown: list[str] = []
    async with serving(loaded) as server, connected(server, loaded) as edge:
        request = GenerationRequest(PROMPT, max_tokens=max_tokens, stop=stop)
        async for event in edge.events(request, drafter, GammaPolicy(gamma, Mode.LOCKSTEP)):
            if isinstance(event, TokenEvent):
                shown.append(event.text)
            elif isinstance(event, DoneEvent):
                return event.result, shown, drafter
    raise AssertionError("no DoneEvent")


async def test_a_eos_inside_an_accepted_block() -> None:
    result, _, _ = await write_scripted([4, 5, EOS, 7, 8, 9], gamma=3)
    assert result.token_ids == (4, 5, EOS)
    assert result.finish_reason is FinishReason.STOP
    assert (result.timings.num_accepted_tokens, result.timings.acceptance_rate) == (2, 1.0)
    assert result.usage.num_accepted_tokens == 2


@pytest.mark.parametrize("gamma", [1, 2, 3, 6])
async def test_b_stop_string_inside_the_last_block_is_stop_not_length(gamma: int) -> None:
    result, _, _ = await write_scripted([10, 11, STOP, 20, 21, 22], gamma=gamma, max_tokens=5, stop=("STOP",))
    assert (result.token_ids, result.finish_reason) == ((10, 11, STOP), FinishReason.STOP)
    assert result.text == " 10 11"
    assert result.usage.completion_tokens == 3


async def test_c_one_token_needs_no_draft() -> None:
    result, _, drafter = await write_scripted([4, 5, 6], gamma=8, max_tokens=1)
    assert (result.token_ids, result.finish_reason) == ((4,), FinishReason.LENGTH)
    assert drafter.asked == []


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8, 9, 10])
@pytest.mark.parametrize("gamma", [1, 4, 8])
async def test_c_max_tokens_is_met_exactly_and_never_drafted_beyond(gamma: int, max_tokens: int) -> None:
    result, _, drafter = await write_scripted(list(range(3, 30)), gamma=gamma, max_tokens=max_tokens)
    assert result.token_ids == tuple(range(3, 3 + max_tokens))
    assert all(asked <= max_tokens - 2 for asked in drafter.asked)


async def test_d_padded_vocabularies_of_different_width() -> None:
    config = TinyConfig(vocab_pad=12, drafter_vocab_pad=5)
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        pair = make_tiny_pair(Path(folder), config)
        loaded = load_target(TargetConfig(pair.target_folder, "padded", "float32", threads=1), lambda _: None)
        assert (loaded.card.n_vocab, loaded.card.n_tokens) == (config.n_tokens + 12, config.n_tokens)
        drafter = LlamaCppDrafter(pair.drafters["noisy"], context_length=256, threads=1)
        async with serving(loaded) as server, connected(server, loaded) as edge:
            for seed in range(8):
                request = GenerationRequest((70 + seed,), SamplingParams(1.2, seed=seed), max_tokens=40)
                alone = await edge.write(request)
                together = await edge.write(request, drafter, GammaPolicy(4, Mode.LOCKSTEP))
                assert together.token_ids == alone.token_ids
                assert max(alone.token_ids) < config.n_tokens
                assert together.timings.num_accepted_tokens > 0
        drafter.close()


async def test_f_context_edge() -> None:
    pieces = [b"x"] * 40
    loaded, _ = scripted(pieces, [3, 4, 5], prompt_length=63, context_length=64)
    drafter = ScriptedDrafter([3, 4, 5], 63)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        result = await edge.write(GenerationRequest((5,) * 63), drafter, GammaPolicy(8, Mode.LOCKSTEP))
        assert (result.token_ids, result.finish_reason) == ((3,), FinishReason.LENGTH)
        for size in (64, 65):
            with pytest.raises(UserInputError, match=f"PROMPT: {size} tokens"):
                await edge.write(GenerationRequest((5,) * size), drafter)
            # An edge that does not check is refused by the cloud.
            stream = edge.channel.decode()
            await stream.send(Open("s", (5,) * size, SamplingParams(), 5, Mode.LOCKSTEP))
            with pytest.raises(ContextOverflowError, match=f"{size} tokens and the context 64"):
                await stream.receive()


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("wrong_at", [(), (2,), (3, 4), (1, 2, 3, 4, 5)])
async def test_g_emoji_across_block_boundaries_is_shown_once_and_whole(
    gamma: int, wrong_at: tuple[int, ...]
) -> None:
    result, shown, _ = await write_scripted([3, 30, 31, 32, 33, 4, EOS], gamma=gamma, wrong_at=wrong_at)
    assert result.text == " 3😀 4"
    assert [text for text in shown if text] == [" 3", "😀", " 4"]


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 8])
async def test_h_stop_string_across_blocks_shows_nothing_of_itself(gamma: int) -> None:
    script = [3, 4, 34, 35, 36, 37, 5, 6]
    result, shown, _ = await write_scripted(script, gamma=gamma, stop=("\n\nUser:",))
    assert result.text == "".join(shown) == " 3 4"
    assert (result.finish_reason, result.usage.completion_tokens) == (FinishReason.STOP, 6)


async def opened(edge: Edge, mode: Mode = Mode.LOCKSTEP) -> DecodeStream:
    """A raw stream after its first verdict."""
    stream = edge.channel.decode()
    await stream.send(Open("raw", PROMPT, SamplingParams(), 20, mode))
    assert isinstance(await stream.receive(), Opened)
    assert isinstance(await stream.receive(), Verdict)
    return stream


async def test_j_the_same_draft_twice_gets_the_same_verdict_and_advances_once() -> None:
    loaded, _ = scripted(PIECES, list(range(3, 30)), prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await opened(edge)
        verdicts = []
        for _ in range(2):
            await stream.send(Draft(0, 4, (4, 9)))
            verdicts.append(await stream.receive())
        one, other = verdicts
        assert isinstance(one, Verdict)
        assert isinstance(other, Verdict)
        assert (
            (one.start, one.num_accepted, one.ids)
            == (other.start, other.num_accepted, other.ids)
            == (4, 1, (5,))
        )
        await stream.send(Draft(1, 6, (6,)))
        assert isinstance(last := await stream.receive(), Verdict)
        assert (last.num_accepted, last.ids) == (1, (7,))
        stream.cancel()


async def test_k_old_epochs_are_ignored_and_the_future_is_aborted() -> None:
    loaded, _ = scripted(PIECES, list(range(3, 30)), prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = await opened(edge)
        await stream.send(Draft(0, 4, (9,)))
        await stream.receive()
        await stream.send(Draft(0, 5, (5,)))  # written before the verdict was known
        await stream.send(Draft(1, 5, (5,)))
        assert isinstance(verdict := await stream.receive(), Verdict)
        assert (verdict.epoch, verdict.start, verdict.num_accepted, verdict.ids) == (1, 5, 1, (6,))
        await stream.send(Draft(1, 70, (5,)))
        with pytest.raises(StaleDraftError, match="starts at 70, the text ends at 7"):
            await stream.receive()


async def test_m_useless_drafts_cost_no_text_and_are_told_once(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter]
) -> None:
    request = GenerationRequest(tuple(range(60, 75)), SamplingParams(0.8, seed=3), max_tokens=200)
    controller = Controller(GammaPolicy())
    notices, sources = [], []
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = await edge.write(request)
        async for event in edge.events(request, drafters["useless"], GammaPolicy(), controller):
            match event:
                case NoticeEvent():
                    notices.append(event.message)
                case TokenEvent():
                    sources.append((event.token_id, event.source))
    assert tuple(token for token, _ in sources) == alone.token_ids
    assert len(notices) == 1
    assert "drafting does not pay" in notices[0]
    assert sum(source == "fill" for _, source in sources) > len(sources) / 2


@pytest.mark.parametrize("gamma", [1, 3, 6])
async def test_n_perfect_drafts_reach_acceptance_one_and_no_more(gamma: int) -> None:
    script = [3 + i % 20 for i in range(1 + 5 * (gamma + 1))]
    result, _, _ = await write_scripted(script, gamma=gamma, max_tokens=len(script))
    timings = result.timings
    assert timings.acceptance_rate == 1.0
    assert timings.mean_acceptance_length == gamma + 1
    assert timings.num_accepted_tokens_per_pos == (5,) * gamma
    assert timings.target_passes == 6


async def test_r_a_vanished_edge_frees_its_stream_and_keeps_its_lease() -> None:
    loaded, target = scripted(PIECES, list(range(3, 30)), prompt_length=3)
    async with serving(loaded, EngineLimits(lease_s=0.4)) as server, connected(server, loaded) as edge:
        stream = await opened(edge)
        target.entered.clear()
        target.go.clear()
        await stream.send(Draft(0, 4, (4, 5)))
        await asyncio.to_thread(target.entered.wait)
        stream.cancel()
        await asyncio.sleep(0.1)
        assert (server.engine.num_streams, server.engine.num_parked) == (0, 0)
        target.go.set()
        await asyncio.sleep(0.1)
        assert (server.engine.num_streams, server.engine.num_parked) == (0, 1)
        # Back within the lease: only the last token is fed again.
        target.fed = 0
        again = edge.channel.decode()
        await again.send(Open("raw", PROMPT, SamplingParams(), 20, Mode.LOCKSTEP, committed_ids=(3, 4, 5, 6)))
        greeting = await again.receive()
        assert isinstance(greeting, Opened)
        assert (greeting.cached, target.fed) == (6, 1)
        again.cancel()
        await asyncio.sleep(0.6)
        # After the lease nothing is left behind.
        await edge.write(GenerationRequest(PROMPT, max_tokens=1))
        assert server.engine.num_parked == 1
        assert len(target.slots.slots) == 1


async def test_bad_ids_and_long_blocks_are_refused_and_the_session_can_be_reopened() -> None:
    loaded, _ = scripted(PIECES, list(range(3, 30)), prompt_length=3, pad=4)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for ids, named in [((len(PIECES),), "token id 40"), ((3,) * 65, "65 tokens")]:
            stream = await opened(edge)
            await stream.send(Draft(0, 4, ids))
            with pytest.raises(ProtocolError, match=named):
                await stream.receive()
        result = await edge.write(GenerationRequest(PROMPT, max_tokens=5))
        assert result.token_ids == (3, 4, 5, 6, 7)


async def test_a_stream_that_does_not_start_with_open_is_refused() -> None:
    loaded, _ = scripted(PIECES, [3, 4], prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = edge.channel.decode()
        await stream.send(SetMode(Mode.CLOUD))
        with pytest.raises(ProtocolError, match="must be Open"):
            await stream.receive()


async def test_one_session_too_many_is_refused_and_says_when_to_retry() -> None:
    loaded, _ = scripted(PIECES, list(range(3, 30)), prompt_length=3)
    async with serving(loaded, EngineLimits(max_sessions=1)) as server, connected(server, loaded) as edge:
        stream = await opened(edge)
        with pytest.raises(OverloadedError, match="1 sessions are open"):
            await edge.write(GenerationRequest(PROMPT, max_tokens=2))
        stream.cancel()
        await asyncio.sleep(0.1)
        assert (await edge.write(GenerationRequest(PROMPT, max_tokens=2))).token_ids == (3, 4)


async def test_stopping_early_frees_the_stream() -> None:
    loaded, _ = scripted(PIECES, [3] * 500, prompt_length=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        events = edge.events(GenerationRequest(PROMPT, max_tokens=500), None, GammaPolicy(mode=Mode.CLOUD))
        async for _ in events:
            break
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.sleep(0.1)
        assert server.engine.num_streams == 0


async def test_a_finished_text_reopened_is_just_finished() -> None:
    loaded, _ = scripted(PIECES, [3, 4, EOS], prompt_length=3, eos=(EOS,))
    async with serving(loaded) as server, connected(server, loaded) as edge:
        stream = edge.channel.decode()
        await stream.send(Open("raw", PROMPT, SamplingParams(), 20, Mode.CLOUD, committed_ids=(3, 4, EOS)))
        message = await stream.receive()
        assert isinstance(message, Finished)
        assert (message.reason, message.usage.completion_tokens) == (FinishReason.STOP, 3)


async def test_memory_for_keys_and_values_runs_out_politely(tiny_pair: TinyPair) -> None:
    # Room for two slots of 512 tokens; the checks at load need two as well.
    config = TargetConfig(tiny_pair.target_folder, "small", "float32", threads=1, kv_bytes=1200 * 512)
    loaded = load_target(config, lambda _: None)
    request = GenerationRequest(tuple(range(60, 70)), max_tokens=4)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        # Each text leaves a parked slot behind; a later one needs its room and gets it.
        for _ in range(4):
            assert len((await edge.write(request)).token_ids) == 4
        # With live streams holding all the room, the next one is told to come back later.
        holders = []
        for name in ("one", "two"):
            stream = edge.channel.decode()
            await stream.send(Open(name, request.prompt_ids, SamplingParams(), 20, Mode.LOCKSTEP))
            await stream.receive()
            await stream.receive()
            holders.append(stream)
        with pytest.raises(OverloadedError):
            await edge.write(request)
        for stream in holders:
            stream.cancel()
        await asyncio.sleep(0.1)
        assert len((await edge.write(request)).token_ids) == 4
