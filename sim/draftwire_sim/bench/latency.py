"""Writes the same texts in every way over links of several round-trip times, interleaved in one run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from draftwire_edge.channel import CloudChannel
from draftwire_edge.drafter import Drafter
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.handshake import check_vocabulary, fetch_card
from draftwire_edge.netem.relay import Relay
from draftwire_sim.bench.arms import CLOUD_ALONE, DRAFT_ALONE, WINDOW, WINDOW_GAMMA, Arm, all_arms
from draftwire_sim.bench.draft_alone import DraftWriter
from draftwire_sim.bench.drafters import LentDrafter
from draftwire_sim.bench.links import BenchLink, playing
from draftwire_sim.bench.model_check import matches_of, modelled_ms
from draftwire_sim.bench.recordings import Recording
from draftwire_sim.bench.summary import link_title
from draftwire_sim.bench.texts import Text, Writer
from draftwire_sim.event_model import Turns

#: Tokens of the text that warms an arm up; it is not counted.
_WARM_UP_TOKENS = 8
#: Time to read a token in a batch / c_d; measured as 0.11 on the machine of BENCHMARKS.md.
_CATCH_UP = 0.11
#: What writes the texts of one arm.
AnyWriter = Writer | DraftWriter


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    draft_model: Path
    links: Sequence[BenchLink]
    recordings: Sequence[Recording]
    tokens: int
    arms: Sequence[Arm] = field(default_factory=all_arms)
    #: Core that the drafter runs on; None leaves that to the system.
    draft_core: int | None = 0
    draft_threads: int = 1


@dataclass(slots=True)
class Measured:
    """All texts."""

    texts: list[Text] = field(default_factory=list)
    #: Link -> of each text, the event model's time per token of ``WINDOW``.
    modelled_ms: dict[str, list[float]] = field(default_factory=dict)


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
        drafter = LentDrafter(with_model, plan.draft_core)
        matches: list[list[bool]] = []
        if any(arm.name == WINDOW for arm in plan.arms):
            matches = await asyncio.to_thread(_all_matches, drafter, plan)
        for link in plan.links:
            async with _writers(plan, cloud, link, with_model.tokenizer.pieces, drafter) as (writers, relay):
                await _measure_link(plan, writers, relay, link, measured, show)
                measured.modelled_ms[link.name] = _modelled_ms(writers, matches)
    finally:
        with_model.close()
    return measured


def _modelled_ms(writers: Sequence[AnyWriter], matches: Sequence[Sequence[bool]]) -> list[float]:
    """Of each text, what the event model says of ``WINDOW``; nothing where that is not measured."""
    return [
        modelled_ms(writer.controller, Turns.DUPLEX, WINDOW_GAMMA, one, _CATCH_UP)
        for writer in writers
        if isinstance(writer, Writer) and writer.arm.name == WINDOW
        for one in matches
    ]


def _all_matches(drafter: Drafter, plan: Plan) -> list[list[bool]]:
    return [matches_of(drafter, one, plan.tokens) for one in plan.recordings]


@asynccontextmanager
async def _writers(
    plan: Plan, cloud: str, link: BenchLink, pieces: Sequence[bytes], drafter: Drafter
) -> AsyncIterator[tuple[list[AnyWriter], Relay]]:
    """A session for each arm, over the link or without it, and the link."""
    async with AsyncExitStack() as stack:
        host, port = cloud.rsplit(":", 1)
        conditions = link.profile.steps[0].conditions
        relay = await stack.enter_async_context(Relay((host, int(port)), conditions))
        near = await stack.enter_async_context(CloudChannel(cloud))
        far = await stack.enter_async_context(CloudChannel(f"127.0.0.1:{relay.port}"))
        card = await fetch_card(near)
        await check_vocabulary(near, card, pieces)
        writers: list[AnyWriter] = [
            DraftWriter(arm, drafter, card.eos_ids)
            if arm.name == DRAFT_ALONE
            else Writer(arm, far if arm.remote else near, card, pieces, drafter)
            for arm in plan.arms
        ]
        for writer in writers:
            stack.push_async_callback(writer.close)
        yield writers, relay


async def _measure_link(
    plan: Plan,
    writers: Sequence[AnyWriter],
    relay: Relay,
    link: BenchLink,
    measured: Measured,
    show: Callable[[str], None],
) -> None:
    for writer in writers:
        await _write(plan, writer, 0, link, _WARM_UP_TOKENS)
    count = len(plan.recordings)
    for prompt in range(count):
        # Each text begins with another arm, so that a slow minute does not always hit the same one.
        turn = prompt % len(writers)
        for writer in (*writers[turn:], *writers[:turn]):
            async with playing(relay, link.for_text(prompt, count)):
                measured.texts.append(await _write(plan, writer, prompt, link, plan.tokens))
        latest = {
            text.arm: text.tpot_ms
            for text in measured.texts
            if (text.prompt, text.link) == (prompt, link.name)
        }
        alone = latest.get(CLOUD_ALONE, 0.0)
        show(f"{link_title(link.name)}, text {prompt + 1} of {count}: " + _line(latest, alone))


def _line(tpot_ms: dict[str, float], alone_ms: float) -> str:
    return " · ".join(f"{arm} {ms:.1f}" for arm, ms in tpot_ms.items()) + f" (alone {alone_ms:.1f}) ms/token"


async def _write(plan: Plan, writer: AnyWriter, prompt: int, link: BenchLink, tokens: int) -> Text:
    recording = plan.recordings[prompt]
    request = GenerationRequest(recording.prompt_ids, max_tokens=min(tokens, len(recording.output_ids)))
    return await writer.write(request, recording.output_ids, prompt, link.name)
