"""The draft model alone writes a text of its own, and its times are those of its tokens."""

from itertools import count

import pytest

from draftwire_edge.controller import GammaPolicy
from draftwire_edge.generation import GenerationRequest
from draftwire_sim.bench.arms import DRAFT_ALONE, Arm
from draftwire_sim.bench.draft_alone import DraftWriter
from draftwire_sim.bench.texts import Text
from loop.harness import ScriptedDrafter

EOS = 1
SCRIPT = [9, 10, 11, 12, EOS, 13]


async def write(max_tokens: int) -> Text:
    ticks = count()
    writer = DraftWriter(
        Arm(DRAFT_ALONE, GammaPolicy(), remote=False), ScriptedDrafter(SCRIPT, 3), {EOS}, lambda: next(ticks)
    )
    text = await writer.write(GenerationRequest((5, 6, 7), max_tokens=max_tokens), (30, 31), 2, "100")
    await writer.close()
    return text


@pytest.mark.parametrize(("max_tokens", "written"), [(3, 3), (1, 1), (10, 5)])
async def test_it_writes_until_its_own_end_or_the_limit(max_tokens: int, written: int) -> None:
    text = await write(max_tokens)
    assert text.tokens == tuple(SCRIPT[:written])
    assert text.token_times_s == tuple(range(1, written + 1))


async def test_it_costs_the_cloud_nothing_and_is_compared_with_nothing() -> None:
    text = await write(4)
    assert (text.target_passes, text.bytes_up, text.bytes_down, text.num_guessed) == (0, 0, 0, 4)
    assert text.identical is None
    assert (text.tpot_ms, text.ttft_ms, text.link) == (1000.0, 1000.0, "100")
