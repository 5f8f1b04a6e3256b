"""An edge that drafts by a script: over a real service, and against answers nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.channel import CloudChannel
from draftwire_edge.handshake import fetch_card
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.messages import (
    CloudMessage,
    Draft,
    EdgeMessage,
    Finished,
    Mode,
    ModelCard,
    Open,
    Opened,
    Usage,
    Verdict,
)
from draftwire_sim.bench.capacity.client import ScriptedEdge, Task
from draftwire_sim.bench.capacity.records import Written
from draftwire_sim.bench.capacity.script import Script
from loop.harness import connected, serving
from loop.scripted_target import scripted

TEXT = (7, 8, 9, 10, 11, 12, 13, 14)
PIECES = [b"x"] * 20
EOS = 1


@asynccontextmanager
async def edge_of(loaded: LoadedTarget) -> AsyncIterator[ScriptedEdge]:
    async with serving(loaded, EngineLimits(lease_s=0)) as server, connected(server, loaded) as edge:
        yield ScriptedEdge(edge.channel, await fetch_card(edge.channel))


def drafting(acceptance: float, seed: str = "a") -> Task:
    return Task((3, 4, 5), len(TEXT), Script(TEXT, acceptance, len(PIECES), seed), gamma=3)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
async def test_drafts_change_the_passes_and_never_the_text(acceptance: float) -> None:
    loaded, _ = scripted(PIECES, TEXT, prompt_length=3)
    async with edge_of(loaded) as edge:
        written = [await edge.write(drafting(acceptance, seed)) for seed in "abc"]
    assert [tuple(text.tokens) for text in written] == [TEXT] * 3
    passes = [text.usage.target_passes for text in written]
    assert passes == [len(text.seen) for text in written]
    # Without a right guess a pass a token; with none wrong the first token, and two blocks of 3 and one.
    bounds = {0.0: (8, 8), 0.5: (3, 8), 1.0: (3, 3)}[acceptance]
    assert all(bounds[0] <= n <= bounds[1] for n in passes)
    assert all(sum(one.tokens for one in text.seen) == len(TEXT) for text in written)


async def test_without_a_script_the_cloud_writes_alone() -> None:
    loaded, _ = scripted(PIECES, TEXT, prompt_length=3)
    heard: list[int] = []
    async with edge_of(loaded) as edge:
        text = await edge.write(Task((3, 4, 5), 8), lambda so_far: heard.append(len(so_far.tokens)))
    assert tuple(text.tokens) == TEXT
    assert (text.usage.num_draft_tokens, text.usage.target_passes) == (0, 8)
    assert heard == list(range(1, 9))


async def test_the_end_of_a_text_ends_the_drafting_too() -> None:
    ended = (7, 8, EOS, 10, 11, 12)
    loaded, _ = scripted(PIECES, ended, prompt_length=3, eos=(EOS,))
    async with edge_of(loaded) as edge:
        text = await edge.write(replace(drafting(1.0), script=Script(ended, 1.0, len(PIECES), "a")))
    assert text.tokens == [7, 8, EOS]


async def test_drafting_takes_its_time() -> None:
    loaded, _ = scripted(PIECES, TEXT, prompt_length=3)
    async with edge_of(loaded) as edge:
        text = await edge.write(replace(drafting(1.0), draft_s=0.01))
    blocks = [one.tokens - 1 for one in text.verdicts]
    between = [later.at_s - before.at_s for before, later in zip(text.seen, text.verdicts, strict=False)]
    assert all(took >= 0.01 * n for took, n in zip(between, blocks, strict=True))
    # A draft's latency begins when it is sent.
    assert all(one.latency_s < took for one, took in zip(text.verdicts, between, strict=True))


CARD = ModelCard(
    "tiny", "Tiny", 20, 20, (EOS,), None, (EOS,), b"", b"", 1000, "float32", exact_shapes=True
)  # fmt: skip


@dataclass
class Answers:
    """A channel and its only stream, with answers made beforehand."""

    answers: list[CloudMessage]
    sent: list[EdgeMessage] = field(default_factory=list)
    cancelled: bool = False

    def decode(self) -> Answers:
        return self

    async def send(self, message: EdgeMessage) -> None:
        self.sent.append(message)

    async def receive(self) -> CloudMessage:
        await asyncio.sleep(0)
        return self.answers.pop(0)

    def cancel(self) -> None:
        self.cancelled = True


async def hear(*answers: CloudMessage) -> tuple[Answers, Written]:
    channel = Answers(list(answers))
    edge = ScriptedEdge(cast("CloudChannel", channel), CARD)
    return channel, await edge.write(drafting(1.0))


def verdict(start: int, num_accepted: int, *ids: int) -> Verdict:
    return Verdict(0, start, num_accepted, ids, Mode.LOCKSTEP)


async def test_a_wrong_guess_begins_a_new_epoch_and_a_right_block_does_not() -> None:
    channel, text = await hear(
        Opened(2, 0), verdict(3, 0, 7), verdict(4, 3, 11), verdict(8, 1, 9), verdict(10, 0, 6),
        Finished(FinishReason.LENGTH, Usage(3, 8, 4)),
    )  # fmt: skip
    opened, *drafts = channel.sent
    assert isinstance(opened, Open)
    assert opened.mode is Mode.LOCKSTEP
    # Of the last block there is nothing left to draft but the token that the target writes itself.
    assert [(d.epoch, d.start, d.ids) for d in drafts if isinstance(d, Draft)] == [
        (0, 4, (8, 9, 10)),
        (0, 8, (12, 13)),
        (1, 10, ()),
    ]
    assert text.tokens == [7, 8, 9, 10, 11, 12, 9, 6]
    assert (text.cached, text.usage.target_passes, channel.cancelled) == (2, 4, True)


@pytest.mark.parametrize("wrong", [verdict(3, 0, 7), verdict(5, 1, 7), verdict(4, 4, 7)])
async def test_a_verdict_that_was_not_asked_for_is_an_error(wrong: Verdict) -> None:
    channel = Answers([verdict(3, 0, 7), wrong])
    with pytest.raises(ProtocolError, match="not asked for"):
        await ScriptedEdge(cast("CloudChannel", channel), CARD).write(drafting(1.0))
    assert channel.cancelled
