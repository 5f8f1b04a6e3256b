"""A replayed target behind the real service: the recorded text, never sooner than stated."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.generation import GenerationRequest, GenerationResult
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import DraftwireError, UserInputError
from draftwire_protocol.fingerprint import piece_hashes
from draftwire_protocol.messages import Mode, ModelCard
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.paced_target import MOST_COUNTED, OneHotRows, Pace, paced
from draftwire_sim.bench.recordings import TOKENS, Recording, load_card, load_recordings
from loop.harness import CLOUD_ALONE, ScriptedDrafter, connected, serving

EOS = 1
PIECES = [f" {i}".encode() for i in range(40)]
N_VOCAB = len(PIECES) + 8
CUT = Recording(1, "cut", "", (5, 6, 7), (9, 10, 11, 12, 13, 14, 15, 16))
ENDED = Recording(2, "ended", "", (5, 6, 8), (20, 21, 22, EOS))
CARD = ModelCard(
    "tiny", "Tiny", N_VOCAB, len(PIECES), (EOS,), None, (EOS,), piece_hashes(PIECES), b"", 1000, "float32",
    exact_shapes=False,
)  # fmt: skip
LOCKSTEP = GammaPolicy(3, Mode.LOCKSTEP)


def replayed(a_ms: float = 0.0, b_ms: float = 0.0) -> LoadedTarget:
    return paced([CUT, ENDED], PIECES, CARD, a_ms=a_ms, b_ms=b_ms)


async def write(
    recording: Recording,
    *,
    max_tokens: int = 8,
    policy: GammaPolicy = LOCKSTEP,
    wrong_at: frozenset[int] = frozenset(),
    temperature: float = 0.0,
) -> GenerationResult:
    """The recorded prompt's text, drafted with some wrong tokens."""
    loaded = replayed()
    drafter = ScriptedDrafter(recording.output_ids, len(recording.prompt_ids), wrong_at, wrong_token=30)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        sampling = SamplingParams(temperature=temperature, seed=3)
        request = GenerationRequest(recording.prompt_ids, sampling, max_tokens=max_tokens)
        return await edge.write(request, drafter, policy)


@pytest.mark.parametrize("wrong_at", [(), (1,), (3, 4), range(8)], ids=str)
async def test_drafts_never_change_the_text(wrong_at: tuple[int, ...]) -> None:
    result = await write(CUT, wrong_at=frozenset(wrong_at))
    assert result.token_ids == CUT.output_ids


async def test_right_drafts_save_passes_and_wrong_ones_do_not() -> None:
    right, wrong = await write(CUT), await write(CUT, wrong_at=frozenset(range(8)))
    assert (right.timings.target_passes, wrong.timings.target_passes) == (3, 8)


async def test_the_cloud_alone_writes_it_too() -> None:
    assert (await write(CUT, policy=CLOUD_ALONE)).token_ids == CUT.output_ids


async def test_drawn_texts_are_the_recorded_ones() -> None:
    assert (await write(CUT, temperature=1.0)).token_ids == CUT.output_ids


async def test_eos_follows_the_end_of_a_text_that_was_cut() -> None:
    result = await write(CUT, max_tokens=50)
    assert result.token_ids == (*CUT.output_ids, EOS)
    assert result.finish_reason is FinishReason.STOP


async def test_a_text_that_ended_ends_there() -> None:
    result = await write(ENDED, max_tokens=50)
    assert result.token_ids == ENDED.output_ids


async def test_a_prompt_that_is_not_recorded_is_refused() -> None:
    with pytest.raises(DraftwireError, match="not recorded"):
        await write(replace(CUT, prompt_ids=(5, 6, 9)))


async def test_successive_texts_of_one_edge() -> None:
    loaded = replayed()
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for recording in (CUT, ENDED, CUT):
            request = GenerationRequest(recording.prompt_ids, max_tokens=len(recording.output_ids))
            assert (await edge.write(request)).token_ids == recording.output_ids


def test_a_pass_takes_its_time() -> None:
    target, pace = replayed(8.0, 2.0).target, Pace(8.0, 2.0)
    cut, ended = target.slots.open(100), target.slots.open(100)
    prompts = [Span(cut, CUT.prompt_ids, 1), Span(ended, ENDED.prompt_ids, 1)]
    block = [Span(cut, (9, 10, 30), 3)]
    for spans in (prompts, block):
        started = time.perf_counter()
        target.forward(spans)
        assert time.perf_counter() - started >= pace.pass_s([len(span.ids) for span in spans])


def test_time_of_a_pass() -> None:
    pace = Pace(50.0, 1.0)
    assert pace.pass_s([1]) == pytest.approx(0.051)
    assert pace.pass_s([5, 2]) == pytest.approx(0.057)
    assert pace.pass_s([512]) == pytest.approx(0.050 + MOST_COUNTED / 1e3)
    with pytest.raises(ValueError, match="below 0"):
        Pace(50.0, -1.0)


def test_rows_of_a_pass_predict_the_recording() -> None:
    target = replayed().target
    slot, other = target.slots.open(100), target.slots.open(100)
    first, second = target.forward([Span(slot, CUT.prompt_ids, 1), Span(other, ENDED.prompt_ids[:2], 0)])
    assert (first.shape, len(second)) == ((1, N_VOCAB), 0)
    (rows,) = target.forward([Span(slot, CUT.output_ids, 8)])
    assert rows.argmax(dim=1).tolist() == [*CUT.output_ids[1:], EOS]


def test_a_refused_pass_leaves_the_slots_alone() -> None:
    target = replayed().target
    slot = target.slots.open(100)
    with pytest.raises(UserInputError):
        target.forward([Span(slot, (30, 31), 1)])
    assert slot.length == 0


@given(st.lists(st.lists(st.integers(0, 9), max_size=80), max_size=5))
def test_reused_rows_are_clean(passes: list[list[int]]) -> None:
    rows = OneHotRows(10)
    for ids in passes:
        found = rows.at(np.array(ids, np.int64))
        assert (found.argmax(axis=1) == ids).all()
        assert np.count_nonzero(found) == len(ids)


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="another vocabulary"):
        paced([CUT], PIECES[::-1], CARD, a_ms=1, b_ms=1)


def test_the_recordings_are_whole() -> None:
    texts, card = load_recordings(), load_card()
    assert len({text.category for text in texts}) == len(texts) == 12
    assert {"coding", "math", "summarization", "translation", "writing"} <= {t.category for t in texts}
    for text in texts:
        assert max(text.prompt_ids + text.output_ids) < card.n_tokens
        assert len(text.output_ids) == TOKENS or text.output_ids[-1] in card.eos_ids
        assert not set(text.output_ids[:-1]) & set(card.eos_ids)
    # No prompt begins another, so that a replay finds the one that is meant.
    prompts = sorted(text.prompt_ids for text in texts)
    assert not any(longer[: len(shorter)] == shorter for shorter, longer in pairwise(prompts))
