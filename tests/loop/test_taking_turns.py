"""Pipelined and duplex write what the target alone writes, whoever is ahead of whom."""

import asyncio
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.controller import Controller, GammaPolicy, Plan
from draftwire_edge.drafter import Drafter, Guess, WantMore
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.generation import DoneEvent, GenerationRequest
from draftwire_edge.proposer import Proposer
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import DraftwireError, ProtocolError
from draftwire_protocol.messages import Mode, Open, Scheme, SetMode
from draftwire_protocol.params import SamplingParams
from loop.harness import Edge, ScriptedDrafter, connected, serving
from loop.scripted_target import scripted
from tiny.pair import TinyPair

MODES = [Mode.PIPELINED, Mode.DUPLEX]
PIECES = [bytes([97 + i % 26]) for i in range(40)]
PROMPT = (1, 2, 3)
SCRIPT = [5 + i % 30 for i in range(60)]


def requests(pair: TinyPair, count: int, temperature: float) -> list[GenerationRequest]:
    rng = np.random.default_rng(11)
    return [
        GenerationRequest(
            tuple(rng.integers(0, pair.config.n_tokens, rng.integers(1, 30)).tolist()),
            SamplingParams(temperature, seed=int(rng.integers(0, 2**63))),
            max_tokens=40,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("gamma", [1, 4, None])
@pytest.mark.parametrize("mode", MODES)
async def test_together_equals_the_cloud_alone(
    tiny_pair: TinyPair,
    loaded: LoadedTarget,
    drafters: dict[str, LlamaCppDrafter],
    mode: Mode,
    gamma: int | None,
    temperature: float,
) -> None:
    several: dict[str, Drafter] = {**drafters, "ngram": NgramDrafter()}
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for request in requests(tiny_pair, 4, temperature):
            alone = await edge.write(request)
            for drafter in several.values():
                together = await edge.write(request, drafter, GammaPolicy(gamma, mode))
                assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
                assert together.finish_reason is alone.finish_reason


@dataclass
class SlowDrafter(ScriptedDrafter):
    """Takes a while for each token."""

    seconds: float = 0.01

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        time.sleep(self.seconds)
        return super().draft(context, proposer, limit, want_more)


@dataclass
class MoodyDrafter(ScriptedDrafter):
    """Has nothing to say every third time, and ids that the target does not have every fifth."""

    calls: list[int] = field(default_factory=list)

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        self.calls.append(len(context))
        if len(self.calls) % 3 == 0:
            return []
        if len(self.calls) % 5 == 0:
            return [Guess(len(PIECES), 0.9)]
        return super().draft(context, proposer, limit, want_more)


@pytest.mark.parametrize("kind", [ScriptedDrafter, SlowDrafter, MoodyDrafter])
@pytest.mark.parametrize("mode", MODES)
async def test_a_drafter_that_is_quick_slow_or_moody(mode: Mode, kind: type[ScriptedDrafter]) -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    drafter = kind(SCRIPT, len(PROMPT), wrong_at=frozenset({3, 4, 9, 17, 18, 19, 40}), wrong_token=1)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        async with asyncio.timeout(30):
            result = await edge.write(GenerationRequest(PROMPT, max_tokens=50), drafter, GammaPolicy(4, mode))
    assert list(result.token_ids) == SCRIPT[:50]
    assert result.finish_reason is FinishReason.LENGTH
    assert result.usage.target_passes <= 50


async def write_at_once(edge: Edge, mode: Mode) -> int:
    """Target passes of a text that the drafter knows by heart."""
    drafter = ScriptedDrafter(SCRIPT, len(PROMPT))
    result = await edge.write(GenerationRequest(PROMPT, max_tokens=50), drafter, GammaPolicy(8, mode))
    assert list(result.token_ids) == SCRIPT[:50]
    return result.usage.target_passes


async def test_a_right_draft_saves_passes_in_every_mode() -> None:
    loaded, target = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    target.seconds = 0.01
    async with serving(loaded) as server, connected(server, loaded) as edge:
        passes = {mode: await write_at_once(edge, mode) for mode in (*MODES, Mode.LOCKSTEP, Mode.CLOUD)}
    assert passes[Mode.CLOUD] == 50
    assert passes[Mode.LOCKSTEP] <= 8
    assert passes[Mode.PIPELINED] < 40
    assert passes[Mode.DUPLEX] < 40


@pytest.mark.parametrize("mode", MODES)
async def test_the_end_inside_a_draft_ends_it(mode: Mode) -> None:
    eos = 2
    script = [*SCRIPT[:12], eos, *SCRIPT]
    loaded, _ = scripted(PIECES, script, prompt_length=len(PROMPT), eos=[eos])
    async with serving(loaded) as server, connected(server, loaded) as edge:
        drafter = ScriptedDrafter(script, len(PROMPT))
        result = await edge.write(GenerationRequest(PROMPT, max_tokens=50), drafter, GammaPolicy(8, mode))
    assert list(result.token_ids) == script[:13]
    assert result.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("mode", MODES)
async def test_a_drafter_that_breaks_costs_one_notice_and_no_token(mode: Mode) -> None:
    class Breaking(ScriptedDrafter):
        def draft(
            self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
        ) -> list[Guess]:
            if len(context) > 20:
                raise RuntimeError("out of luck")
            return super().draft(context, proposer, limit, want_more)

    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    async with serving(loaded) as server, connected(server, loaded) as edge:
        drafter = Breaking(SCRIPT, len(PROMPT))
        result = await edge.write(GenerationRequest(PROMPT, max_tokens=50), drafter, GammaPolicy(4, mode))
    assert list(result.token_ids) == SCRIPT[:50]


@pytest.mark.parametrize("mode", MODES)
async def test_schemes_that_draw_refuse_to_draft_on(mode: Mode) -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    async with serving(loaded) as server, connected(server, loaded) as edge:
        drawn = SamplingParams(1.0)
        stream = edge.channel.decode()
        await stream.send(Open("a", PROMPT, drawn, 20, mode, scheme=Scheme.REJECTION))
        with pytest.raises(ProtocolError, match="equality"):
            await stream.receive()
        stream = edge.channel.decode()
        await stream.send(Open("b", PROMPT, drawn, 20, Mode.LOCKSTEP, scheme=Scheme.REJECTION))
        await stream.receive()
        await stream.receive()
        await stream.send(SetMode(mode))
        with pytest.raises(ProtocolError, match="equality"):
            await stream.receive()
        # The edge never asks for it.
        request = GenerationRequest(PROMPT, drawn, max_tokens=20, scheme=Scheme.REJECTION)
        drafter = ScriptedDrafter(SCRIPT, len(PROMPT))
        result = await edge.write(request, drafter, GammaPolicy())
        assert len(result.token_ids) == 20


@pytest.mark.parametrize("mode", MODES)
async def test_drafts_that_cross_the_end_of_the_text_on_the_way_cost_nothing(mode: Mode) -> None:
    loaded, _ = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for length in (*range(1, 12), *[7] * 60):
            drafter = SlowDrafter(SCRIPT, len(PROMPT), seconds=0.0003 * (length % 4))
            request = GenerationRequest(PROMPT, max_tokens=length)
            result = await edge.write(request, drafter, GammaPolicy(8, mode))
            assert list(result.token_ids) == SCRIPT[:length]


class Flighty(Controller):
    """Changes its mind about everything after every verdict."""

    def __init__(self, seed: int) -> None:
        super().__init__(GammaPolicy())
        self._random = random.Random(seed)

    def plan(self, room: int, allowed: Collection[Mode] = tuple(Mode)) -> Plan:
        return Plan(self._random.choice(list(allowed)), max(0, min(room, self._random.randrange(9))))

    def want_more(self, guesses: Sequence[Guess]) -> bool:
        return self._random.random() < 0.8


@pytest.mark.parametrize("seed", range(12))
async def test_modes_may_change_at_every_verdict(seed: int) -> None:
    loaded, target = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    chance = random.Random(seed)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for _ in range(6):
            target.seconds = chance.choice([0.0, 0.001, 0.004])
            wrong = frozenset(chance.sample(range(50), chance.choice([0, 6, 25])))
            seconds = chance.choice([0.0, 0.001, 0.004])
            drafter = SlowDrafter(SCRIPT, len(PROMPT), wrong, 1, seconds=seconds)
            request = GenerationRequest(PROMPT, max_tokens=50)
            events = edge.events(request, drafter, GammaPolicy(), Flighty(chance.randrange(1000)))
            async with asyncio.timeout(30):
                done = [event async for event in events][-1]
            assert isinstance(done, DoneEvent)
            assert list(done.result.token_ids) == SCRIPT[:50]


@pytest.mark.parametrize("mode", [Mode.DUPLEX, Mode.CLOUD])
async def test_a_slow_reader_does_not_make_the_cloud_look_fast(mode: Mode) -> None:
    """TPOT* counts from when messages come, not from when somebody takes them: then some wait already."""
    loaded, target = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    target.seconds, pause_s = 0.05, 0.15
    policy = GammaPolicy(4, mode)
    controller, drafter = Controller(policy), ScriptedDrafter(SCRIPT, len(PROMPT), frozenset(range(60)), 1)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        request = GenerationRequest(PROMPT, max_tokens=16)
        async for _ in edge.events(request, drafter, policy, controller):
            await asyncio.sleep(pause_s)
    assert controller.tpot_ms >= 1e3 * target.seconds * 0.9


async def test_a_channel_that_is_closed_in_mid_text_ends_the_text() -> None:
    loaded, target = scripted(PIECES, SCRIPT, prompt_length=len(PROMPT))
    target.seconds = 0.05
    async with serving(loaded) as server:
        async with connected(server, loaded) as edge:
            request = GenerationRequest(PROMPT, max_tokens=50)
            events = edge.events(request, None, GammaPolicy(mode=Mode.CLOUD))
            await anext(events)

        async def rest() -> None:
            async for _ in events:
                pass

        with pytest.raises((asyncio.CancelledError, DraftwireError)):
            await asyncio.wait_for(rest(), timeout=10)
