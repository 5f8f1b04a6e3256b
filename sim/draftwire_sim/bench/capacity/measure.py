"""Lets N edges write at once, arm after arm, and keeps what they saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import chain

from draftwire_edge.channel import CloudChannel
from draftwire_edge.handshake import fetch_card
from draftwire_protocol.messages import ModelCard
from draftwire_sim.bench.capacity.arms import CLOUD, SERVED_BY, UNBATCHED, VLLM
from draftwire_sim.bench.capacity.client import ScriptedEdge, Task
from draftwire_sim.bench.capacity.known import Known, known_texts
from draftwire_sim.bench.capacity.records import Turn, Written
from draftwire_sim.bench.capacity.script import Script
from draftwire_sim.bench.capacity.vllm_process import VllmProcess


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    arms: Sequence[str]
    #: Numbers of edges that write at once.
    clients: Sequence[int]
    #: Turns: texts that each edge writes in each arm.
    prompts: int
    tokens: int
    gamma: int
    acceptance: float
    draft_ms: float
    seed: int
    #: Texts that an edge writes one after the other in each turn.
    in_a_row: int = 1

    @property
    def texts(self) -> int:
        """Different texts that are wanted; with fewer, some edges write the same one at once."""
        return max(self.clients) * self.in_a_row + self.prompts - 1


@dataclass(slots=True)
class Measured:
    """A whole run."""

    card: ModelCard
    known: Sequence[Known]
    turns: list[Turn] = field(default_factory=list)


class Crowd:
    """Edges that write at once over one channel; the scripts are the same in every arm.

    Args:
        edge: writes each text in a session of its own.
        card: of the target.
        known: what it writes alone.
        plan: acceptance, gamma, drafting time and seed.
    """

    def __init__(self, edge: ScriptedEdge, card: ModelCard, known: Sequence[Known], plan: Plan) -> None:
        self._edge = edge
        self._card = card
        self._known = known
        self._plan = plan

    def text(self, place: int, turn: int) -> Known:
        """The text at a place in a turn; neighbours write different ones."""
        return self._known[(place + turn) % len(self._known)]

    def task(self, place: int, turn: int, *, drafts: bool) -> Task:
        """What an edge does at a place in a turn."""
        text, plan = self.text(place, turn), self._plan
        task = Task(text.prompt_ids, len(text.output_ids), None, plan.gamma, plan.draft_ms / 1e3)
        if not drafts:
            return task
        seed = f"{plan.seed}/{place}/{turn}"
        return replace(task, script=Script(text.output_ids, plan.acceptance, self._card.n_tokens, seed))

    @property
    def tokens(self) -> int:
        """Of the shortest text."""
        return min(len(text.output_ids) for text in self._known)

    async def write(
        self, arm: str, clients: int, turn: int, heard: Callable[[Written], None] = lambda _: None
    ) -> Turn:
        """Each edge its texts, all edges at once.

        Args:
            arm: its name; those of the cloud alone are not drafted for.
            clients: number of edges.
            turn: which texts.
            heard: told after each verdict what its edge has written so far.
        """
        row = self._plan.in_a_row

        async def write(client: int) -> list[Written]:
            """An edge's texts; at each moment the edges are at places of their own."""
            places = range(client, client + row * clients, clients)
            tasks = [self.task(place, turn, drafts=arm != CLOUD) for place in places]
            return [await self._edge.write(task, heard) for task in tasks]

        started = time.perf_counter()
        edges = await asyncio.gather(*(write(client) for client in range(clients)))
        seconds = time.perf_counter() - started
        expected = [
            self.text(client + n * clients, turn).output_ids for client in range(clients) for n in range(row)
        ]
        texts = list(chain.from_iterable(edges))
        same = [tuple(text.tokens) == one for text, one in zip(texts, expected, strict=True)]
        return Turn(arm, clients, turn, seconds, texts, all(same), in_a_row=row)

    async def warm_up(self, arm: str, clients: int) -> None:
        """A whole text each, for whatever the service does only once.

        Among it is the first touch of memory for keys and values, 8 s/GB on some virtual machines.
        """
        tasks = [self.task(client, 0, drafts=arm != CLOUD) for client in range(clients)]
        await asyncio.gather(*(self._edge.write(task) for task in tasks))


async def measure(
    plan: Plan,
    addresses: Mapping[str, str],
    show: Callable[[str], None],
    vllm: VllmProcess | None = None,
) -> Measured:
    """Write everything in every arm.

    Args:
        plan: what to measure.
        addresses: arm -> HOST:PORT; nobody else may use these services.
        show: told what is done.
        vllm: ready, where that arm is measured.
    """
    async with AsyncExitStack() as stack:
        # 1. Reach the services, and record what the target writes alone.
        channels = {
            address: await stack.enter_async_context(CloudChannel(address))
            for address in dict.fromkeys(addresses.values())
        }
        alone = channels[addresses.get(UNBATCHED) or next(iter(addresses.values()))]
        card = await fetch_card(alone)
        known = await known_texts(alone, card, count=plan.texts, tokens=plan.tokens, show=show)
        crowds = {
            arm: Crowd(ScriptedEdge(channels[address], card), card, known, plan)
            for arm, address in addresses.items()
        }
        # 2. For every number of edges, let the arms take turns.
        measured = Measured(card, known)
        for clients in plan.clients:
            await _measure_clients(plan, clients, crowds, vllm, measured)
            show(_line(measured.turns, clients))
    return measured


async def _measure_clients(
    plan: Plan, clients: int, crowds: Mapping[str, Crowd], vllm: VllmProcess | None, measured: Measured
) -> None:
    for arm, crowd in crowds.items():
        await crowd.warm_up(arm, clients)
    if vllm is not None:
        await asyncio.to_thread(_vllm_turn, vllm, _texts(crowds, clients, 0), clients, 0)
    arms = [arm for arm in plan.arms if arm in SERVED_BY or vllm is not None]
    for turn in range(plan.prompts):
        # Each turn begins with another arm, so that a slow minute does not always hit the same one.
        first = turn % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            if arm == VLLM and vllm is not None:
                texts = _texts(crowds, clients, turn)
                measured.turns.append(await asyncio.to_thread(_vllm_turn, vllm, texts, clients, turn))
            else:
                measured.turns.append(await crowds[arm].write(arm, clients, turn))


def _texts(crowds: Mapping[str, Crowd], clients: int, turn: int) -> list[Known]:
    """What each edge writes; it is the same in every arm."""
    crowd = next(iter(crowds.values()))
    return [crowd.text(client, turn) for client in range(clients)]


def _vllm_turn(vllm: VllmProcess, texts: Sequence[Known], clients: int, turn: int) -> Turn:
    seconds, outputs = vllm.write([text.prompt_ids for text in texts], [len(t.output_ids) for t in texts])
    same = all(tuple(ours) == text.output_ids for ours, text in zip(outputs, texts, strict=True))
    return Turn(VLLM, clients, turn, seconds, (), same, sum(map(len, outputs)))


def _line(turns: Sequence[Turn], clients: int) -> str:
    """Tokens a second of every arm."""
    rates: dict[str, list[float]] = {}
    for one in turns:
        if one.clients == clients:
            rates.setdefault(one.arm, []).append(one.tokens / one.seconds)
    found = (f"{arm} {sum(row) / len(row):.0f}" for arm, row in rates.items())
    return f"{clients} edges: " + " · ".join(found) + " tokens/s"
