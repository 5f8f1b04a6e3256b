import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.errors import ContextOverflowError, OutOfSlotsError
from draftwire_cloud.engine.layout import KvLayout, LayerShape
from draftwire_cloud.engine.slots import GROW_TOKENS, Slot, SlotStore

LAYOUT = KvLayout(
    layers={0: LayerShape(2, 4), 3: LayerShape(1, 8)}, dtype=torch.float32, device=torch.device("cpu")
)
STEP_BYTES = GROW_TOKENS * LAYOUT.bytes_per_token


def append(store: SlotStore, slot: Slot, ids: list[int]) -> None:
    """What a forward pass does to a slot: the value of every element is the token's id."""
    past = slot.length
    store.reserve([(slot, past + len(ids))])
    for layer, shape in LAYOUT.layers.items():
        column = torch.tensor(ids, dtype=torch.float32)[None, :, None]
        k = column.expand(shape.n_heads, -1, shape.head_dim)
        slot.write(layer, past, k, -k)
    slot.ids.extend(ids)


def held(slot: Slot, layer: int) -> list[float]:
    k, v = slot.view(layer, slot.length)
    assert torch.equal(k, -v)
    assert bool((k == k[:, :1, :, :1]).all())
    return [float(x) for x in k[0, 0, :, 0]]


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.bytes_per_token == 2 * (2 * 4 + 1 * 8) * 4


@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0, 1)), min_size=1, max_size=6))
def test_any_sequence_of_appends_and_rollbacks_keeps_what_is_left(steps: list[tuple[int, float]]) -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * STEP_BYTES)
    slot, model = store.open(5000), list[int]()
    for n, kept in steps:
        new = [len(model) + i + 1 for i in range(n)]
        if n:
            append(store, slot, new)
            model += new
        model = model[: int(kept * len(model))]
        slot.truncate(len(model))
        assert slot.ids == model
        assert all(held(slot, layer) == model for layer in LAYOUT.layers)
        assert slot.allocated % GROW_TOKENS == 0
        assert slot.allocated >= slot.length


def test_rollback_copies_nothing() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * STEP_BYTES)
    slot = store.open(2000)
    append(store, slot, [1, 2, 3])
    before = slot.kv[0].data_ptr()
    slot.truncate(1)
    assert slot.kv[0].data_ptr() == before
    assert slot.length == 1


@pytest.mark.parametrize("n", [-1, 4])
def test_a_slot_cannot_be_cut_to_what_it_does_not_hold(n: int) -> None:
    store = SlotStore(LAYOUT, budget_bytes=STEP_BYTES)
    slot = store.open(100)
    append(store, slot, [1, 2, 3])
    with pytest.raises(ValueError, match="3 tokens"):
        slot.truncate(n)


def test_memory_is_taken_in_steps_and_given_back() -> None:
    store = SlotStore(LAYOUT, budget_bytes=3 * STEP_BYTES)
    slot, other = store.open(5000), store.open(5000)
    assert store.used_bytes == 2 * STEP_BYTES
    store.reserve([(slot, GROW_TOKENS + 1)])
    assert store.used_bytes == 3 * STEP_BYTES
    store.release(slot)
    store.release(slot)
    assert (store.used_bytes, store.n_open) == (STEP_BYTES, 1)
    store.release(other)
    assert store.used_bytes == 0


def test_no_slot_is_opened_beyond_the_budget() -> None:
    store = SlotStore(LAYOUT, budget_bytes=STEP_BYTES)
    store.open(10)
    with pytest.raises(OutOfSlotsError, match="1 open slots"):
        store.open(10)
    assert store.n_open == 1


def test_a_reservation_is_all_or_nothing() -> None:
    store = SlotStore(LAYOUT, budget_bytes=3 * STEP_BYTES)
    a, b = store.open(5000), store.open(5000)
    with pytest.raises(OutOfSlotsError):
        store.reserve([(a, GROW_TOKENS + 1), (b, GROW_TOKENS + 1)])
    assert (a.allocated, b.allocated) == (GROW_TOKENS, GROW_TOKENS)


def test_capacity_is_a_hard_limit() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * STEP_BYTES)
    slot = store.open(3)
    with pytest.raises(ContextOverflowError):
        append(store, slot, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="at least 1"):
        store.open(0)


def test_a_released_slot_is_refused() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * STEP_BYTES)
    slot = store.open(3)
    store.release(slot)
    with pytest.raises(ValueError, match="not open"):
        store.reserve([(slot, 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fresh_memory_is_zero_so_that_masked_rows_stay_finite(dtype: torch.dtype) -> None:
    layout = KvLayout(LAYOUT.layers, dtype, torch.device("cpu"))
    slot = SlotStore(layout, budget_bytes=STEP_BYTES).open(10)
    assert slot.kv[3].dtype == dtype
    assert slot.kv[3].shape == (2, 1, GROW_TOKENS, 8)
    assert not slot.kv[3].any()
