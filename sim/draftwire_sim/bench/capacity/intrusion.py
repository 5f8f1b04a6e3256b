"""What a long prompt does to those who are writing: the same texts without it and with it, in one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from draftwire_edge.channel import CloudChannel
from draftwire_edge.handshake import fetch_card
from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.client import ScriptedEdge, Task
from draftwire_sim.bench.capacity.figures import percentile
from draftwire_sim.bench.capacity.known import known_texts, long_prompt
from draftwire_sim.bench.capacity.measure import Crowd, Plan
from draftwire_sim.bench.capacity.records import Seen, Turn, Written

#: Tokens that are written behind the long prompt: enough to see whether the text is right.
_TOKENS = 4
#: Part of their texts that all edges have written when it comes.
_COMES_AFTER = 0.25
WITHOUT, WITH, DURING = "without", "with", "during"


@dataclass(slots=True)
class Intrusions:
    """All runs; the lists go together, one entry a turn."""

    prompt_tokens: int
    without: list[Turn] = field(default_factory=list)
    beside: list[Turn] = field(default_factory=list)
    #: The long prompt's own text, with nobody else there and beside the others.
    alone: list[Written] = field(default_factory=list)
    intruders: list[Written] = field(default_factory=list)


async def measure_intrusions(
    plan: Plan, length: int, address: str, show: Callable[[str], None]
) -> Intrusions:
    """Write the texts of ``plan.clients[0]`` edges with and without a prompt of ``length`` tokens.

    Args:
        plan: what the edges write; ``prompts`` is the number of turns.
        length: of the long prompt, in tokens.
        address: HOST:PORT of a service that nobody else uses.
        show: told what is done.

    Raises:
        UserInputError: the target's context does not hold the prompt.
    """
    clients = plan.clients[0]
    async with CloudChannel(address) as channel:
        card = await fetch_card(channel)
        if length + _TOKENS > card.context_length:
            problem = f"{card.name} has a context of {card.context_length} tokens"
            raise UserInputError("--long-prompt", problem, f"Give at most {card.context_length - _TOKENS}")
        count = clients + plan.prompts - 1
        known = await known_texts(channel, card, count=count, tokens=plan.tokens, show=show)
        edge = ScriptedEdge(channel, card)
        crowd, task = Crowd(edge, card, known, plan), Task(long_prompt(known, length), _TOKENS)
        measured = Intrusions(length)
        await crowd.warm_up(WITHOUT, clients)
        for turn in range(plan.prompts):
            # The two take turns in going first, so that a slow minute does not always hit the same one.
            if turn % 2 == 0:
                measured.without.append(await crowd.write(WITHOUT, clients, turn))
            await _with_it(crowd, edge, task, measured, clients, turn)
            if turn % 2 == 1:
                measured.without.append(await crowd.write(WITHOUT, clients, turn))
            measured.alone.append(await edge.write(task))
            show(f"turn {turn + 1} of {plan.prompts}: {_line(measured)}")
    return measured


async def _with_it(
    crowd: Crowd, edge: ScriptedEdge, task: Task, measured: Intrusions, clients: int, turn: int
) -> None:
    written: dict[int, int] = {}
    comes = asyncio.Event()

    def heard(text: Written) -> None:
        written[id(text)] = len(text.tokens)
        if len(written) == clients and min(written.values()) >= _COMES_AFTER * crowd.tokens:
            comes.set()

    async def intrude() -> Written:
        await comes.wait()
        return await edge.write(task)

    intruder = asyncio.create_task(intrude())
    try:
        measured.beside.append(await crowd.write(WITH, clients, turn, heard))
        comes.set()
        measured.intruders.append(await intruder)
    finally:
        intruder.cancel()


def _line(measured: Intrusions) -> str:
    intruder, alone = measured.intruders[-1], measured.alone[-1]
    return f"long prompt's first token after {intruder.ttft_s:.2f} s, alone {alone.ttft_s:.2f} s"


def summarise_intrusions(measured: Intrusions) -> dict[str, Any]:
    """The ``summary`` object of the report."""
    verdicts = {
        WITHOUT: _verdicts(measured.without),
        WITH: _verdicts(measured.beside),
        DURING: [
            one
            for turn, intruder in zip(measured.beside, measured.intruders, strict=True)
            for one in during(turn.texts, intruder)
        ],
    }
    figures = {
        f"verdict_p{percent}_ms": {
            name: round(1e3 * percentile([one.latency_s for one in seen], percent), 3)
            for name, seen in verdicts.items()
            if seen
        }
        for percent in (50, 99)
    }
    ratios = {
        name.replace("_ms", "_ratio"): round(row[WITH] / row[WITHOUT], 4) for name, row in figures.items()
    }
    expected = measured.alone[0].tokens
    texts = [*measured.alone, *measured.intruders]
    return {
        "prompt_tokens": measured.prompt_tokens,
        **figures,
        **ratios,
        "verdicts": {name: len(seen) for name, seen in verdicts.items()},
        "ttft_ms": {
            "alone": round(1e3 * median(one.ttft_s for one in measured.alone), 1),
            WITH: round(1e3 * median(one.ttft_s for one in measured.intruders), 1),
        },
        "tokens_per_s": {
            WITHOUT: round(_rate(measured.without), 2), WITH: round(_rate(measured.beside), 2)
        },
        "cached": max(one.cached for one in texts),
        "decoding_at_first_token": _still_decoding(measured),
        "identical": all(turn.identical for turn in (*measured.without, *measured.beside))
        and all(one.tokens == expected for one in texts),
    }  # fmt: skip


def during(texts: Sequence[Written], intruder: Written) -> list[Seen]:
    """The verdicts of others that came between a prompt and its first token."""
    begin, end = intruder.asked_at_s, intruder.first_at_s
    return [one for text in texts for one in text.verdicts if begin < one.at_s <= end]


def _verdicts(turns: Sequence[Turn]) -> list[Seen]:
    return [one for turn in turns for text in turn.texts for one in text.verdicts]


def _rate(turns: Sequence[Turn]) -> float:
    return sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)


def _still_decoding(measured: Intrusions) -> int:
    """Fewest edges that were still writing when the long prompt had its first token, over all turns."""
    return min(
        sum(text.ended_at_s > intruder.first_at_s for text in turn.texts)
        for turn, intruder in zip(measured.beside, measured.intruders, strict=True)
    )
