"""Many sessions in one pass choose the tokens that each chooses alone, one at a time, at every position.

Texts are the target's own answers to real questions; one that ends early goes on behind its end. What
shares a pass is chosen to be in the way: ids at the edges of the vocabulary, the longest block there is, a
piece of a long prompt; every block has a wrong end that is cut off again. Run it with ``-m nightly``; it
says how far the logits were apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from draftwire_cloud.convert import ensure_safetensors
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target
from draftwire_cloud.loading import DtypeName, LoadedTarget, TargetConfig, load_target
from draftwire_models.cache import ModelCache
from draftwire_models.resolve import resolve_target
from draftwire_protocol.messages import MAX_DRAFT_TOKENS

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(5400)]

PROMPTS = [Path(__file__).with_name("prompts.jsonl"), Path(__file__).parents[2] / "benchmarks/prompts.jsonl"]
#: 2,048 positions of each target.
GROUPS, SESSIONS, TOKENS = 4, 8, 64
PIECE, ROOM = 512, 2048
NEIGHBOURS = ("nobody", "ids at the edges", "the longest block", "a piece of a prompt")


@dataclass(frozen=True)
class Text:
    """A question and the target's answer, one token at a time and alone."""

    prompt: list[int]
    ids: list[int]
    #: ``[n, n_vocab]``; row i chose ``ids[i]``.
    rows: torch.Tensor

    @property
    def fed(self) -> list[int]:
        """What row i is behind."""
        return [self.prompt[-1], *self.ids[:-1]]


@dataclass(frozen=True)
class RealTarget:
    """A loaded target and its questions."""

    name: str
    loaded: LoadedTarget
    prompts: list[list[int]]


@pytest.fixture(
    scope="module",
    params=[
        ("smollm2-self", "float32", "float32"),
        ("qwen2.5-coder", "bfloat16", "bfloat16"),
        ("qwen2.5-coder", "bfloat16", "float32"),
    ],
    ids=lambda one: f"{one[0]}-{one[2]}",
)
def real(request: pytest.FixtureRequest) -> RealTarget:
    """One target at a time: two do not fit everywhere."""
    name, stored, dtype = request.param
    return load(name, stored, dtype)


def load(name: str, stored: str, dtype: DtypeName) -> RealTarget:
    folder = ensure_safetensors(resolve_target(name), ModelCache.open().root, stored)  # type: ignore[arg-type]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [json.loads(line)["prompt"] for file in PROMPTS for line in file.read_text().splitlines()]
    encoded = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": one}], add_generation_prompt=True, return_dict=False
        )
        for one in asked
    ]
    loaded = load_target(TargetConfig(folder, name, dtype), lambda _: None)
    return RealTarget(f"{name}, {loaded.card.dtype}", loaded, encoded)


def alone(target: Target, prompt: list[int]) -> Text:
    """Read a prompt, then decode greedily, a token a pass."""
    slot, fed = target.slots.open(len(prompt) + TOKENS), prompt
    ids: list[int] = []
    rows = []
    while len(ids) < TOKENS:
        rows.append(target.forward([Span(slot, fed, 1)])[0])
        fed = [int(rows[-1].argmax())]
        ids += fed
    target.slots.release(slot)
    return Text(prompt, ids, torch.cat(rows))


class Neighbour:
    """Somebody else in every pass.

    Args:
        target: whose passes.
        kind: one of ``NEIGHBOURS``.
        rng: draws ids.
    """

    def __init__(self, target: Target, kind: str, rng: np.random.Generator) -> None:
        self._target, self._kind, self._rng = target, kind, rng
        self.slot = target.slots.open(ROOM)
        self._passes = 0

    def spans(self) -> list[Span]:
        """Its part of the next pass."""
        self._passes += 1
        last = self._target.facts.n_vocab - 1
        match self._kind:
            case "ids at the edges":
                ids = [0, last, *self._drawn(3), last, 0]
            case "the longest block":
                ids = self._drawn(MAX_DRAFT_TOKENS + 1)
            case "a piece of a prompt" if self._passes % 3 == 1:
                ids = self._drawn(PIECE)
            case _:
                return []
        if self.slot.length + len(ids) > ROOM:
            self.slot.truncate(0)
        return [Span(self.slot, ids, 0 if len(ids) == PIECE else len(ids))]

    def _drawn(self, n: int) -> list[int]:
        return [int(i) for i in self._rng.integers(0, self._target.facts.n_vocab, size=n)]


def packed(target: Target, texts: Sequence[Text], kind: str, rng: np.random.Generator) -> list[torch.Tensor]:
    """The rows ``[n, n_vocab]`` of every text, all texts in each pass, beside a neighbour."""
    neighbour = Neighbour(target, kind, rng)
    slots = [target.slots.open(len(text.prompt) + TOKENS + MAX_DRAFT_TOKENS) for text in texts]
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    try:
        # 1. Prompts, in pieces of any length.
        while reading := [i for i, text in enumerate(texts) if slots[i].length < len(text.prompt) - 1]:
            spans = [next_piece(slots[i], texts[i].prompt[:-1], int(rng.integers(1, 65))) for i in reading]
            target.forward([*neighbour.spans(), *spans])
        # 2. Blocks of 1 to 17 tokens, each with a wrong end that is cut off again.
        ends = [len(text.prompt) - 1 + len(text.ids) for text in texts]
        while writing := [i for i in range(len(texts)) if slots[i].length < ends[i]]:
            verify(target, texts, slots, rows, writing, neighbour, rng)
    finally:
        for slot in (neighbour.slot, *slots):
            target.slots.release(slot)
    return [torch.cat(parts) for parts in rows]


def next_piece(slot: Slot, prompt: list[int], most: int) -> Span:
    """The next tokens of a prompt."""
    return Span(slot, prompt[slot.length : slot.length + most], 0)


def verify(
    target: Target,
    texts: Sequence[Text],
    slots: Sequence[Slot],
    rows: list[list[torch.Tensor]],
    writing: Sequence[int],
    neighbour: Neighbour,
    rng: np.random.Generator,
) -> None:
    """One pass over a block of each text that goes on."""
    spans, lengths = [], {}
    for i in writing:
        at = slots[i].length - len(texts[i].prompt) + 1
        block = texts[i].fed[at : at + int(rng.integers(1, 18))]
        wrong = [int(token) for token in rng.integers(0, target.facts.n_vocab, size=rng.integers(0, 4))]
        spans.append(Span(slots[i], [*block, *wrong], len(block) + len(wrong)))
        lengths[i] = len(block)
    before = {i: slots[i].length for i in writing}
    # The neighbour sits anywhere among them.
    others, at = neighbour.spans(), int(rng.integers(0, len(spans) + 1))
    logits = target.forward([*spans[:at], *others, *spans[at:]])
    del logits[at : at + len(others)]
    for i, found in zip(writing, logits, strict=True):
        rows[i].append(found[: lengths[i]])
        slots[i].truncate(before[i] + lengths[i])


@pytest.mark.parametrize("group", range(GROUPS))
def test_packed_chooses_what_one_at_a_time_chooses(
    real: RealTarget, group: int, capsys: pytest.CaptureFixture[str]
) -> None:
    target, rng = real.loaded.target, np.random.default_rng(group)
    texts = [alone(target, prompt) for prompt in real.prompts[group::GROUPS]]
    assert len(texts) == SESSIONS
    assert len({len(text.prompt) for text in texts}) > 1
    positions = sum(len(text.ids) for text in texts)
    assert positions == SESSIONS * TOKENS
    flipped = {}
    for kind in NEIGHBOURS:
        found = packed(target, texts, kind, rng)
        pairs = list(zip(found, texts, strict=True))
        assert [len(rows) for rows in found] == [len(text.ids) for text in texts]
        flipped[kind] = sum(int((rows.argmax(-1) != torch.tensor(text.ids)).sum()) for rows, text in pairs)
        apart = max(float((rows - text.rows).abs().max()) for rows, text in pairs)
        other = sum(int((rows != text.rows).any(-1).sum()) for rows, text in pairs)
        with capsys.disabled():
            sys.stdout.write(
                f"\n{real.name}, group {group}, beside {kind}: {positions} positions, other bits at {other}, "
                f"largest logit difference {apart:.2e}, other tokens {flipped[kind]}"
            )
        assert not (real.loaded.exactness.is_exact and other), kind
    assert flipped == dict.fromkeys(NEIGHBOURS, 0)
