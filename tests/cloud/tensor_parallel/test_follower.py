"""Steps told by rank 0 bring another rank's arena to where rank 0's is; here both hold the whole model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from draftwire_cloud.engine.arena import BLOCK_TOKENS
from draftwire_cloud.engine.errors import ContextOverflowError, LostRankError, OutOfSlotsError
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target
from draftwire_cloud.tensor_parallel.follower import Follower
from draftwire_cloud.tensor_parallel.step import Step
from draftwire_cloud.tensor_parallel.target import TensorParallelTarget
from tiny.config import TinyConfig
from tiny.hf_folder import write_hf_folder
from tiny.weights import build_weights

BLOCKS = 8
#: Sessions of several blocks.
LONG = TinyConfig(context_length=4 * BLOCK_TOKENS)


class Wire:
    """Stands for `Control`: hands every step to a follower at once, and keeps them."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.steps: list[Step] = []
        self.ended = False
        self.fault: Exception | None = None

    def say(self, step: Step | None) -> None:
        if step is None:
            self.ended = True
            return
        if self.fault is not None:
            raise self.fault
        self.steps.append(step)
        self.follower.run(step)


@dataclass
class Pair:
    """Two ranks."""

    leader: TensorParallelTarget
    theirs: Target
    wire: Wire

    def assert_alike(self, slots: Sequence[Slot]) -> None:
        """The follower has the same keys and values in every row of every slot, scratch included."""
        for slot in slots:
            n = slot.n_placed * BLOCK_TOKENS
            for layer in self.leader.slots.layout.layers if n else ():
                ours = self.leader.slots.arena.view(layer, slot.first_row, n)
                others = self.theirs.slots.arena.view(layer, slot.first_row, n)
                assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split") / "target"
    write_hf_folder(folder, LONG, build_weights(LONG, LONG.target_rows))
    return folder


@pytest.fixture
def pair(folder: Path) -> Pair:
    mine, theirs = (
        Target.load(folder, dtype="float32", threads=1, weights="plain", kv_bytes=2**20 * BLOCKS // 4)
        for _ in range(2)
    )
    assert mine.slots.free_tokens == BLOCKS * BLOCK_TOKENS
    wire = Wire(Follower(theirs))
    return Pair(TensorParallelTarget(mine, wire), theirs, wire)  # type: ignore[arg-type]


def ids(chance: random.Random, n: int) -> list[int]:
    return [chance.randrange(256) for _ in range(n)]


def act(pair: Pair, slots: list[Slot], chance: random.Random) -> bool:
    """One thing that streams, leases or the scheduler may do between passes; whether a prefix was shared."""
    store, what = pair.leader.slots, chance.randrange(5)
    if what == 0 and len(slots) < 6 and store.free_tokens:
        slots.append(store.open(LONG.context_length))
    elif what == 1 and slots and chance.random() < 0.5:
        store.release(slots.pop(chance.randrange(len(slots))))
    elif what == 2 and slots:
        slot = chance.choice(slots)
        slot.truncate(chance.randint(slot.length // 2, slot.length))
    elif what == 3 and slots and chance.random() < 0.3:
        store.empty(chance.choice(slots))
    elif what == 4 and len(slots) > 1:
        slot, source = chance.sample(slots, 2)
        if source.length and source.n_blocks * BLOCK_TOKENS <= store.free_tokens:
            slot.truncate(0)
            store.inherit(slot, source, chance.randint(1, source.length))
            return True
    return False


def test_whatever_rank_0_does_to_its_slots_the_others_follow(pair: Pair) -> None:
    chance, leader, counts = random.Random(1), pair.leader, pair.leader.slots.counts
    slots, shared, refused = list[Slot](), 0, 0
    for _ in range(250):
        shared += sum(act(pair, slots, chance) for _ in range(chance.randrange(4)))
        chosen = chance.sample(slots, min(len(slots), 2))
        lengths = [min(chance.choice([1, 6, 300]), LONG.context_length - slot.length) for slot in chosen]
        spans = [Span(s, ids(chance, n), 1) for s, n in zip(chosen, lengths, strict=True) if n]
        try:
            leader.forward(spans)
        except OutOfSlotsError:
            refused += 1
        else:
            if spans:  # the others hear of moves with the next step
                pair.assert_alike(slots)
    # The interesting things did happen.
    assert min(counts.moves, counts.compactions, shared, refused) > 3


def test_a_step_says_what_moved_since_the_last_one_and_where_tokens_go(pair: Pair) -> None:
    leader, store = pair.leader, pair.leader.slots
    first, second = store.open(100), store.open(100)
    leader.forward([Span(first, list(range(20)), 1)])
    first.truncate(12)
    store.inherit(second, first, 10)
    leader.forward([Span(second, [5, 6], 2), Span(first, [7], 0)])
    moves, spans = pair.wire.steps[-1]
    assert [move.name for move in moves] == ["clear", "copy"]
    assert [tuple(span) for span in spans] == [([5, 6], 2, 10, BLOCK_TOKENS), ([7], 0, 12, 0)]
    leader.forward([Span(first, [8], 1)])
    assert not pair.wire.steps[-1].moves


def test_what_rank_0_refuses_is_told_to_nobody(pair: Pair) -> None:
    slot = pair.leader.slots.open(4)
    assert pair.leader.forward([]) == []
    for spans in (
        [Span(slot, [10_000], 1)],  # an id out of range
        [Span(slot, [1] * 5, 1)],  # beyond the slot
        [Span(slot, [1], 1), Span(slot, [2], 1)],  # one slot twice
    ):
        with pytest.raises((ValueError, ContextOverflowError)):
            pair.leader.forward(spans)
    assert not pair.wire.steps
    # What was moved for a refused pass is told with the next one.
    pair.leader.forward([Span(slot, [1], 1)])
    pair.assert_alike([slot])
    assert [move.name for move in pair.wire.steps[0].moves] == ["clear"]


def test_a_failure_after_the_step_was_told_is_final(pair: Pair) -> None:
    slot = pair.leader.slots.open(10)
    pair.wire.fault = RuntimeError("Connection closed by peer")
    with pytest.raises(LostRankError, match="fell out of step: RuntimeError: Connection closed by peer"):
        pair.leader.forward([Span(slot, [1], 1)])
    assert slot.length == 0


def test_a_target_of_one_rank_notes_no_moves(folder: Path) -> None:
    whole = Target.load(folder, dtype="float32", threads=1, weights="plain")
    whole.forward([Span(whole.slots.open(10), [1], 1)])
    assert whole.slots.arena.journal is None


def test_closing_lets_the_others_go(pair: Pair) -> None:
    pair.leader.close()
    assert pair.wire.ended
