"""Who writes what, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from draftwire_protocol.messages import ModelCard
from draftwire_sim.bench.capacity.arms import BATCHED, CLOUD, UNBATCHED, VLLM
from draftwire_sim.bench.capacity.client import ScriptedEdge, Task
from draftwire_sim.bench.capacity.known import Known
from draftwire_sim.bench.capacity.measure import Crowd, Measured, Plan, _measure_clients
from draftwire_sim.bench.capacity.records import Written
from draftwire_sim.bench.capacity.vllm_process import VllmProcess
from sim.bench.capacity.worlds import seen, written

CARD = ModelCard("tiny", "Tiny", 20, 20, (1,), None, (1,), b"", b"", 1000, "float32", exact_shapes=True)
KNOWN = [Known((number, 3), tuple(range(5, 15 + number))) for number in range(3)]
PLAN = Plan((BATCHED, UNBATCHED, CLOUD), (2,), 3, 10, 5, 0.8, 2.0, 7)


@dataclass
class Writer:
    """An edge that writes the target's text at once, or another one."""

    wrong: tuple[int, ...] = ()
    tasks: list[Task] = field(default_factory=list)

    async def write(self, task: Task, heard: Callable[[Written], None] = lambda _: None) -> Written:
        self.tasks.append(task)
        text = written([seen(1.0, 1), seen(2.0, task.max_tokens - 1)])
        text.tokens = list(KNOWN[task.prompt_ids[0]].output_ids[: task.max_tokens])
        if task.prompt_ids[0] in self.wrong:
            text.tokens[-1] = 0
        heard(text)
        return text


def crowd(writer: Writer) -> Crowd:
    return Crowd(cast("ScriptedEdge", writer), CARD, KNOWN, PLAN)


def test_every_arm_is_sent_the_same_drafts_and_neighbours_write_different_texts() -> None:
    here, there = crowd(Writer()), crowd(Writer())
    for client, turn in ((0, 0), (1, 0), (0, 1)):
        one, other = (each.task(client, turn, drafts=True) for each in (here, there))
        assert one.script is not None
        assert other.script is not None
        assert one.script.guesses == other.script.guesses
        assert (one.prompt_ids, one.max_tokens, one.gamma, one.draft_s) == (
            KNOWN[client + turn].prompt_ids, len(KNOWN[client + turn].output_ids), 5, 0.002,
        )  # fmt: skip
    assert here.text(0, 0) != here.text(1, 0)
    # The same text of two edges has other mistakes.
    first, second = (here.task(client, 0, drafts=True).script for client in (0, 3))
    assert first is not None
    assert second is not None
    assert first.guesses != second.guesses


async def test_texts_in_a_row_are_written_one_after_the_other_and_never_beside_themselves() -> None:
    writer = Writer()
    found = await Crowd(cast("ScriptedEdge", writer), CARD, KNOWN, replace(PLAN, in_a_row=2)).write(
        BATCHED, 1, 0
    )
    assert [len(edge) for edge in found.edges] == [2]
    assert [task.prompt_ids for task in writer.tasks] == [KNOWN[0].prompt_ids, KNOWN[1].prompt_ids]
    assert found.identical
    several = replace(PLAN, in_a_row=3, clients=(2, 4))
    assert several.texts == 4 * 3 + PLAN.prompts - 1


async def test_a_crowd_says_whether_every_text_is_the_targets() -> None:
    right = await crowd(Writer()).write(BATCHED, 3, 0)
    assert (right.clients, right.turn, right.identical) == (3, 0, True)
    assert right.tokens == sum(len(text.output_ids) for text in KNOWN)
    wrong = await crowd(Writer(wrong=(2,))).write(BATCHED, 3, 0)
    assert not wrong.identical
    assert (await crowd(Writer(wrong=(2,))).write(BATCHED, 2, 0)).identical


async def test_the_cloud_alone_is_not_drafted_for_and_warming_up_writes_whole_texts() -> None:
    writer = Writer()
    await crowd(writer).write(CLOUD, 2, 0)
    assert [task.script for task in writer.tasks] == [None, None]
    writer.tasks.clear()
    await crowd(writer).warm_up(BATCHED, 2)
    assert [task.max_tokens for task in writer.tasks] == [10, 11]
    assert all(task.script is not None for task in writer.tasks)


@dataclass
class Vllm:
    """Writes what the target would, and notes what it was asked for."""

    asked: list[tuple[list[tuple[int, ...]], list[int]]] = field(default_factory=list)

    def write(self, prompts: list[tuple[int, ...]], max_tokens: list[int]) -> tuple[float, list[list[int]]]:
        self.asked.append((prompts, max_tokens))
        pairs = zip(prompts, max_tokens, strict=True)
        return 2.0, [list(KNOWN[ids[0]].output_ids[:n]) for ids, n in pairs]


async def test_arms_take_turns_in_going_first_and_all_write_the_same_texts() -> None:
    vllm, measured = Vllm(), Measured(CARD, KNOWN)
    plan = Plan((*PLAN.arms, VLLM), (2,), 4, 10, 5, 0.8, 0.0, 7)
    crowds = {arm: crowd(Writer()) for arm in PLAN.arms}
    await _measure_clients(plan, 2, crowds, cast("VllmProcess", vllm), measured)
    order = [(turn.turn, turn.arm) for turn in measured.turns]
    assert [arm for number, arm in order if number == 0] == list(plan.arms)
    assert {arm for at, (_, arm) in enumerate(order) if at % 4 == 0} == set(plan.arms)
    assert Counter(arm for _, arm in order) == dict.fromkeys(plan.arms, 4)
    # Warmed up once, then asked for the very texts of the other arms.
    (_, warm), *turns = vllm.asked
    assert warm == [10, 11]
    for number, (prompts, lengths) in enumerate(turns):
        texts = [crowds[BATCHED].text(client, number) for client in range(2)]
        assert prompts == [text.prompt_ids for text in texts]
        assert lengths == [len(text.output_ids) for text in texts]
    counted = {turn.tokens for turn in measured.turns if turn.turn == 0}
    assert counted == {10 + 11}
    assert all(turn.identical for turn in measured.turns)


async def test_vllms_other_text_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, measured = Vllm(), Measured(CARD, KNOWN)
    monkeypatch.setattr(vllm, "write", lambda prompts, _: (1.0, [[9] * 10 for _ in prompts]))
    plan = Plan((BATCHED, VLLM), (2,), 1, 10, 5, 0.8, 0.0, 7)
    await _measure_clients(plan, 2, {BATCHED: crowd(Writer())}, cast("VllmProcess", vllm), measured)
    assert {turn.arm: turn.identical for turn in measured.turns} == {BATCHED: True, VLLM: False}
