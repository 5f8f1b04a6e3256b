from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, DynamicCache

from draftwire_cloud.engine.errors import ContextOverflowError, OutOfSlotsError, UnsupportedModelError
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target
from draftwire_cloud.engine.weights import half_available
from tiny.architectures import Arch

LoadTarget = Callable[..., Target]
FolderOf = Callable[..., Path]

SERVED: tuple[Arch, ...] = get_args(Arch)[:15]
FORMS = ["plain", "blocked", "half", "bf16"]


def random_ids(rng: np.random.Generator, n: int) -> list[int]:
    return [int(i) for i in rng.integers(0, 256, size=n)]


@torch.inference_mode()
def with_dynamic_cache(folder: Path, ids: list[int], head: int) -> torch.Tensor:
    """Logits [n, n_vocab] of the model's own path: prefill, then the rest one token at a time."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    cache, rows = DynamicCache(config=model.config), []
    for part in (ids[:head], *([i] for i in ids[head:])):
        out = model(input_ids=torch.tensor([part]), cache=cache, use_cache=True)
        rows.append(out.logits[0].float())
    return torch.cat(rows)


def verify(target: Target, slot: Slot, ids: list[int]) -> torch.Tensor:
    """Logits [n, n_vocab] behind every id."""
    return target.forward([Span(slot, ids, len(ids))])[0]


@pytest.mark.parametrize("arch", SERVED)
def test_packed_equals_separate(
    arch: Arch, folder_of: FolderOf, load_target: LoadTarget, rng: np.random.Generator
) -> None:
    target = load_target(arch)
    texts = [random_ids(rng, 60), random_ids(rng, 45), random_ids(rng, 9)]
    slots = [target.slots.open(100) for _ in texts]
    heads = [40, 20, 1]  # beyond the window of 24 tokens, and before it
    packed = [
        target.forward([Span(s, t[:h], h) for s, t, h in zip(slots, texts, heads, strict=True)]),
        target.forward([Span(s, t[h:], len(t) - h) for s, t, h in zip(slots, texts, heads, strict=True)]),
    ]
    for i, (text, head) in enumerate(zip(texts, heads, strict=True)):
        ours = torch.cat([packed[0][i], packed[1][i]])
        theirs = with_dynamic_cache(folder_of(arch), text, head)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("form", ["blocked", "half"])
def test_prepared_weights_give_the_models_own_float32_logits(
    form: str, folder_of: FolderOf, load_target: LoadTarget, rng: np.random.Generator
) -> None:
    stored = torch.bfloat16 if form == "half" else torch.float32
    target, ids = load_target("qwen2", form), random_ids(rng, 40)
    assert form in target.facts.weights
    ours = verify(target, target.slots.open(64), ids)
    theirs = with_dynamic_cache(folder_of("qwen2", stored), ids, 40)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arch", ["qwen2", "mistral", "gemma2", "gpt_oss"])
def test_bits_do_not_depend_on_blocks_neighbours_chunks_or_rollbacks(
    arch: Arch, form: str, load_target: LoadTarget, rng: np.random.Generator
) -> None:
    target = load_target(arch, form)
    ids = random_ids(rng, 150)
    slot = target.slots.open(200)
    alone = torch.cat([verify(target, slot, [i]) for i in ids])

    other, neighbours = target.slots.open(200), [target.slots.open(400) for _ in range(3)]
    target.forward([Span(other, ids[:37], 0)])
    rows = [alone[:37]]
    while other.length < len(ids):
        n, at = int(rng.integers(1, 18)), other.length
        wrong = Span(other, random_ids(rng, n), n)
        target.forward([wrong])
        other.truncate(at)
        around = [Span(s, random_ids(rng, int(rng.integers(1, 12))), 1) for s in neighbours]
        around.insert(int(rng.integers(0, 4)), Span(other, ids[at : at + n], len(ids[at : at + n])))
        logits = target.forward(around)
        rows.append(logits[next(i for i, span in enumerate(around) if span.slot is other)])
    assert torch.equal(torch.cat(rows), alone)


def test_bits_survive_growth_of_the_slot_and_another_number_of_threads(
    load_target: LoadTarget, rng: np.random.Generator
) -> None:
    ids = random_ids(rng, 512)
    before = torch.get_num_threads()
    outcomes = []
    try:
        for threads in (1, 2):
            target = load_target("qwen2", "blocked", threads=threads)
            target.facts.__dict__["context_length"] = 2000
            slot = target.slots.open(2000)
            target.forward([Span(slot, ids[:500], 0)])
            one = torch.cat([verify(target, slot, [i]) for i in ids[500:] + ids[:20]])
            assert slot.n_blocks == 2
            slot.truncate(500)
            outcomes += [one, verify(target, slot, ids[500:] + ids[:20])]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(outcomes[0], other) for other in outcomes[1:])


@pytest.mark.skipif(not half_available(), reason="without it the kernels may happen to agree")
def test_without_fixed_shapes_bits_do_depend_on_the_block(
    load_target: LoadTarget, rng: np.random.Generator
) -> None:
    target, ids = load_target("qwen2", "half", fixed_shapes=False), random_ids(rng, 40)
    a, b = target.slots.open(64), target.slots.open(64)
    alone = torch.cat([verify(target, a, [i]) for i in ids])
    block = verify(target, b, ids)
    torch.testing.assert_close(alone, block, atol=1e-4, rtol=0)
    assert not torch.equal(alone, block)


def test_only_the_wanted_logits_come_back(load_target: LoadTarget, rng: np.random.Generator) -> None:
    target = load_target()
    spans = [Span(target.slots.open(32), random_ids(rng, n), want) for n, want in ((5, 0), (7, 3), (1, 1))]
    logits = target.forward(spans)
    assert [tuple(rows.shape) for rows in logits] == [(n, target.facts.n_vocab) for n in (0, 3, 1)]
    assert all(rows.dtype == torch.float32 for rows in logits)
    again = target.forward([Span(target.slots.open(32), spans[1].ids, 7)])[0]
    assert torch.equal(again[-3:], logits[1])
    assert target.forward([]) == []


def test_a_middle_chunk_needs_no_output_layer(load_target: LoadTarget) -> None:
    target = load_target("qwen2", "bf16")
    calls: list[int] = []
    target.model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    slot = target.slots.open(32)
    assert target.forward([Span(slot, [1, 2, 3], 0)])[0].shape[0] == 0
    assert (slot.ids, calls) == ([1, 2, 3], [])


def break_last_layer(target: Target, error: Exception) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise error

    handle: RemovableHandle = target.model.model.layers[-1].mlp.register_forward_pre_hook(fail)
    return handle.remove


def test_a_failing_pass_leaves_every_slot_as_it_was(
    load_target: LoadTarget, rng: np.random.Generator
) -> None:
    target, ids = load_target(), random_ids(rng, 30)
    slots = [target.slots.open(64), target.slots.open(64)]
    target.forward([Span(slot, ids[:10], 0) for slot in slots])
    mend = break_last_layer(target, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        target.forward([Span(slot, random_ids(rng, 9), 1) for slot in slots])
    mend()
    assert [slot.ids for slot in slots] == [ids[:10], ids[:10]]
    after = verify(target, slots[0], ids[10:])
    fresh = target.slots.open(64)
    target.forward([Span(fresh, ids[:10], 0)])
    assert torch.equal(after, verify(target, fresh, ids[10:]))


@pytest.mark.parametrize("ids", [[-1], [10**9]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int], load_target: LoadTarget) -> None:
    target = load_target()
    slot = target.slots.open(8)
    with pytest.raises(ValueError, match="token ids"):
        target.forward([Span(slot, ids, 1)])
    assert slot.ids == []


def test_limits_are_errors_that_change_nothing(load_target: LoadTarget) -> None:
    target = load_target(kv_bytes=2 * 512 * load_target().facts.kv_bytes_per_token)
    short, long = target.slots.open(3), target.slots.open(10_000)
    with pytest.raises(ContextOverflowError, match="slot of 3"):
        target.forward([Span(long, [1], 1), Span(short, [1, 2, 3, 4], 1)])
    with pytest.raises(ContextOverflowError, match="context of 512"):
        target.forward([Span(long, [1] * 513, 1)])
    target.slots.budget_bytes = 0
    target.facts.__dict__["context_length"] = 10_000
    with pytest.raises(OutOfSlotsError):
        target.forward([Span(long, [1] * 513, 1)])
    assert (short.ids, long.ids) == ([], [])


def test_a_keyword_this_engine_does_not_know_is_refused_at_load(
    folder_of: FolderOf, rng: np.random.Generator
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder_of("llama"), dtype=torch.float32)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _module, args, kwargs: (args, kwargs | {"position_bias": torch.zeros(1)}), with_kwargs=True
        )
    with pytest.raises(UnsupportedModelError, match="position_bias"):
        Target.wrap(model, dtype=torch.float32)
    del rng


def test_facts_say_what_the_service_needs(load_target: LoadTarget) -> None:
    facts = load_target("qwen2", "bf16").facts
    assert facts.architecture == "Qwen2ForCausalLM"
    assert facts.context_length == 512
    assert facts.dtype == "bfloat16"
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, width, bytes
    assert facts.eos_ids == tuple(sorted(facts.eos_ids)) != ()
    assert facts.device == "cpu"


@cache
def shared_target(folder: Path) -> Target:
    return Target.load(folder, device="cpu", dtype="float32", weights="plain")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_interleaving_of_sessions_gives_each_its_own_logits(
    data: st.DataObject, folder_of: FolderOf
) -> None:
    target = shared_target(folder_of("qwen2"))
    slots = [target.slots.open(200) for _ in range(3)]
    last: dict[int, tuple[list[int], torch.Tensor]] = {}
    ids = st.lists(st.integers(0, 255), min_size=1, max_size=20)
    for _ in range(data.draw(st.integers(1, 6))):
        chosen = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        for i in chosen:
            slots[i].truncate(data.draw(st.integers(0, slots[i].length)))
        spans = [Span(slots[i], data.draw(ids), 1) for i in chosen]
        for i, rows in zip(chosen, target.forward(spans), strict=True):
            last[i] = (list(slots[i].ids), rows)
    for held, rows in last.values():
        fresh = target.slots.open(200)
        assert torch.equal(target.forward([Span(fresh, held, 1)])[0], rows)
        target.slots.release(fresh)
    for slot in slots:
        target.slots.release(slot)
