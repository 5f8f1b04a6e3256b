"""Writes the same texts in every way over links of several round-trip times, interleaved in one run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftwire_edge.channel import CloudChannel
from draftwire_edge.drafter import Drafter
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.handshake import check_vocabulary, fetch_card
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.relay import Relay
from draftwire_edge.proposer import Proposer
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.arms import CLOUD_ALONE, WINDOW, WINDOW_GAMMA, Arm, all_arms
from draftwire_sim.bench.drafters import LentDrafter, UselessDrafter
from draftwire_sim.bench.model_check import matches_of, modelled_ms
from draftwire_sim.bench.recordings import Recording
from draftwire_sim.bench.texts import Text, Writer
from draftwire_sim.event_model import Turns

#: Tokens of the text that warms an arm up; it is not counted.
_WARM_UP_TOKENS = 8
#: Time to read a token in a batch / c_d; measured as 0.11 on the machine of BENCHMARKS.md.
_CATCH_UP = 0.11


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    draft_model: Path
    rtts_ms: tuple[float, ...]
    recordings: Sequence[Recording]
    tokens: int
    arms: Sequence[Arm] = field(default_factory=all_arms)
    jitter_ms: float = 0.0
    loss: float = 0.0
    #: Core that the drafter runs on; None leaves that to the system.
    draft_core: int | None = 0
    draft_threads: int = 1
    #: Random guesses instead of the draft model's.
    useless: bool = False
    #: Changes of the link within each text: seconds from its begin, and R in ms from then on.
    changes: Sequence[tuple[float, float]] = ()


@dataclass(slots=True)
class Measured:
    """All texts, and the draft model alone."""

    texts: list[Text] = field(default_factory=list)
    #: c_d of the draft model writing by itself.
    draft_alone_ms: float = 0.0
    #: R in ms -> of each text, the event model's time per token of ``WINDOW``.
    modelled_ms: dict[float, list[float]] = field(default_factory=dict)


async def measure(plan: Plan, cloud: str, show: Callable[[str], None]) -> Measured:
    """Write every text in every way.

    Args:
        plan: what to measure.
        cloud: HOST:PORT of the service.
        show: told what is done.
    """
    measured = Measured()
    with_model = LlamaCppDrafter(plan.draft_model, threads=plan.draft_threads)
    try:
        pieces = with_model.tokenizer.pieces
        useful = LentDrafter(with_model, plan.draft_core)
        useless = UselessDrafter(with_model, plan.draft_core, len(pieces))
        drafter: Drafter = useless if plan.useless else useful
        measured.draft_alone_ms = await asyncio.to_thread(_draft_alone, useful, plan.recordings[0])
        matches: list[list[bool]] = []
        if any(arm.name == WINDOW for arm in plan.arms) and not plan.useless:
            matches = await asyncio.to_thread(_all_matches, useful, plan)
        for rtt_ms in plan.rtts_ms:
            async with _writers(plan, cloud, rtt_ms, pieces, drafter) as (writers, relay):
                await _measure_link(plan, writers, relay, rtt_ms, measured, show)
                if matches:
                    window = next(writer for writer in writers if writer.arm.name == WINDOW)
                    measured.modelled_ms[rtt_ms] = [
                        modelled_ms(window.controller, Turns.DUPLEX, WINDOW_GAMMA, one, _CATCH_UP)
                        for one in matches
                    ]
    finally:
        with_model.close()
    return measured


def _draft_alone(drafter: Drafter, recording: Recording) -> float:
    """c_d in ms: the draft model writes by itself."""
    proposer, count = Proposer(SamplingParams()), 64
    drafter.prefill(recording.prompt_ids)
    started = time.perf_counter()
    drafter.draft(recording.prompt_ids, proposer, count, lambda _: True)
    return 1e3 * (time.perf_counter() - started) / count


def _all_matches(drafter: Drafter, plan: Plan) -> list[list[bool]]:
    return [matches_of(drafter, one, plan.tokens) for one in plan.recordings]


@asynccontextmanager
async def _writers(
    plan: Plan, cloud: str, rtt_ms: float, pieces: Sequence[bytes], drafter: Drafter
) -> AsyncIterator[tuple[list[Writer], Relay]]:
    """A session for each arm, over the link or without it, and the link."""
    async with AsyncExitStack() as stack:
        conditions = Conditions(rtt_ms=rtt_ms, jitter_ms=plan.jitter_ms, loss=plan.loss)
        host, port = cloud.rsplit(":", 1)
        relay = await stack.enter_async_context(Relay((host, int(port)), conditions))
        near = await stack.enter_async_context(CloudChannel(cloud))
        far = await stack.enter_async_context(CloudChannel(f"127.0.0.1:{relay.port}"))
        card = await fetch_card(near)
        await check_vocabulary(near, card, pieces)
        writers = [Writer(arm, far if arm.remote else near, card, pieces, drafter) for arm in plan.arms]
        for writer in writers:
            stack.push_async_callback(writer.close)
        yield writers, relay


async def _measure_link(
    plan: Plan,
    writers: Sequence[Writer],
    relay: Relay,
    rtt_ms: float,
    measured: Measured,
    show: Callable[[str], None],
) -> None:
    for writer in writers:
        await _write(plan, writer, 0, rtt_ms, _WARM_UP_TOKENS)
    for prompt in range(len(plan.recordings)):
        # Each text begins with another arm, so that a slow minute does not always hit the same one.
        turn = prompt % len(writers)
        for writer in (*writers[turn:], *writers[:turn]):
            async with _changing(relay, plan.changes):
                measured.texts.append(await _write(plan, writer, prompt, rtt_ms, plan.tokens))
        latest = {
            text.arm: text.tpot_ms
            for text in measured.texts
            if (text.prompt, text.rtt_ms) == (prompt, rtt_ms)
        }
        alone = latest.get(CLOUD_ALONE, 0.0)
        show(f"R {rtt_ms:g} ms, text {prompt + 1} of {len(plan.recordings)}: " + _line(latest, alone))


@asynccontextmanager
async def _changing(relay: Relay, changes: Sequence[tuple[float, float]]) -> AsyncIterator[None]:
    """Change the link at each stated moment, and back in the end."""
    before, loop = relay.conditions, asyncio.get_running_loop()

    def change(rtt_ms: float) -> None:
        relay.conditions = replace(before, rtt_ms=rtt_ms)

    timers = [loop.call_later(at_s, change, rtt_ms) for at_s, rtt_ms in changes]
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        relay.conditions = before


def _line(tpot_ms: dict[str, float], alone_ms: float) -> str:
    return " · ".join(f"{arm} {ms:.1f}" for arm, ms in tpot_ms.items()) + f" (alone {alone_ms:.1f}) ms/token"


async def _write(plan: Plan, writer: Writer, prompt: int, rtt_ms: float, tokens: int) -> Text:
    recording = plan.recordings[prompt]
    request = GenerationRequest(recording.prompt_ids, max_tokens=min(tokens, len(recording.output_ids)))
    return await writer.write(request, recording.output_ids, prompt, rtt_ms)
