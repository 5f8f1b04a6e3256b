"""The texts that are written, and the long prompt made of them."""

import pytest

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.handshake import fetch_card
from draftwire_protocol.errors import UserInputError
from draftwire_sim.bench.capacity.known import Known, known_texts, long_prompt
from draftwire_sim.bench.recordings import load_recordings
from loop.harness import connected, serving

TEXTS = [Known((1, 2, 3), (4, 5)), Known((6, 7), (8,))]


@pytest.mark.parametrize("length", [1, 4, 7, 30])
def test_a_long_prompt_has_its_length_and_begins_like_nobodys(length: int) -> None:
    ids = long_prompt(TEXTS, length)
    assert len(ids) == length
    assert ids[:8] == (2, 3, 4, 5, 6, 7, 8, 1)[:length]
    assert ids[8:] == ids[: max(length - 8, 0)][: len(ids[8:])]
    assert all(ids[0] != text.prompt_ids[0] for text in TEXTS)


async def record(loaded: LoadedTarget, count: int, tokens: int) -> list[Known]:
    notes: list[str] = []
    async with serving(loaded, EngineLimits(lease_s=0)) as server, connected(server, loaded) as edge:
        card = await fetch_card(edge.channel)
        known = await known_texts(edge.channel, card, count=count, tokens=tokens, show=notes.append)
    assert notes == [f"{len(known)} texts recorded, the target alone"]
    return known


async def test_texts_are_recorded_until_there_are_enough(endless: LoadedTarget) -> None:
    known = await record(endless, 3, 10)
    assert [len(text.output_ids) for text in known] == [10, 10, 10]
    assert len({text.prompt_ids for text in known}) == 3
    again = await record(endless, 12, 10)
    assert again[:3] == known
    fitting = [one for one in again if len(one.prompt_ids) + 10 <= endless.card.context_length]
    assert len(fitting) == len(again) < len(load_recordings())


async def test_a_context_that_holds_no_prompt_and_text_is_told_before_anything_runs(
    endless: LoadedTarget,
) -> None:
    with pytest.raises(UserInputError, match=r"--tokens.* 512 tokens does not hold 500") as refused:
        await record(endless, 3, 500)
    most = int(str(refused.value).split("at most ")[1].split()[0].rstrip("."))
    assert [len(text.output_ids) for text in await record(endless, 1, most)] == [most]
