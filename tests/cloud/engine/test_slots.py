import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.arena import BLOCK_TOKENS
from draftwire_cloud.engine.errors import ContextOverflowError, OutOfSlotsError
from draftwire_cloud.engine.layout import KvLayout, LayerShape
from draftwire_cloud.engine.slots import Slot, SlotStore

LAYOUT = KvLayout(
    layers={0: LayerShape(2, 4), 3: LayerShape(1, 8)}, dtype=torch.float32, device=torch.device("cpu")
)
BLOCK_BYTES = BLOCK_TOKENS * LAYOUT.bytes_per_token


def append(store: SlotStore, slot: Slot, ids: list[int]) -> None:
    """What a forward pass does to a slot: the value of every element is the token's id."""
    past = slot.length
    store.reserve([(slot, past + len(ids))])
    for layer, shape in LAYOUT.layers.items():
        column = torch.tensor(ids, dtype=torch.float32)[None, :, None]
        k = column.expand(shape.n_heads, -1, shape.head_dim)
        rows = torch.arange(slot.first_row + past, slot.first_row + past + len(ids))
        store.arena.write(layer, rows, k, -k)
    slot.ids.extend(ids)


def held(store: SlotStore, slot: Slot, layer: int) -> list[float]:
    if not slot.length:
        return []
    k, v = store.arena.view(layer, slot.first_row, slot.length)
    assert torch.equal(k, -v)
    assert bool((k == k[:, :1, :, :1]).all())
    return [float(x) for x in k[0, 0, :, 0]]


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.bytes_per_token == 2 * (2 * 4 + 1 * 8) * 4


@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0, 1)), min_size=1, max_size=6))
def test_any_sequence_of_appends_and_rollbacks_keeps_what_is_left(steps: list[tuple[int, float]]) -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * BLOCK_BYTES)
    slot, model = store.open(5000), list[int]()
    for n, kept in steps:
        new = [len(model) + i + 1 for i in range(n)]
        if n:
            append(store, slot, new)
            model += new
        model = model[: int(kept * len(model))]
        slot.truncate(len(model))
        assert slot.ids == model
        assert all(held(store, slot, layer) == model for layer in LAYOUT.layers)
        assert slot.n_blocks * BLOCK_TOKENS >= slot.length
        assert store.used_bytes == slot.n_blocks * BLOCK_BYTES


def test_rollback_copies_nothing() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * BLOCK_BYTES)
    slot = store.open(2000)
    append(store, slot, [1, 2, 3])
    before = slot.first_row
    slot.truncate(1)
    assert slot.first_row == before
    assert held(store, slot, 0) == [1.0]
    assert slot.length == 1


@pytest.mark.parametrize("n", [-1, 4])
def test_a_slot_cannot_be_cut_to_what_it_does_not_hold(n: int) -> None:
    store = SlotStore(LAYOUT, budget_bytes=BLOCK_BYTES)
    slot = store.open(100)
    append(store, slot, [1, 2, 3])
    with pytest.raises(ValueError, match="3 tokens"):
        slot.truncate(n)


def test_memory_is_taken_in_steps_and_given_back() -> None:
    store = SlotStore(LAYOUT, budget_bytes=3 * BLOCK_BYTES)
    slot, other = store.open(5000), store.open(5000)
    assert store.used_bytes == 2 * BLOCK_BYTES
    store.reserve([(slot, BLOCK_TOKENS + 1)])
    assert store.used_bytes == 3 * BLOCK_BYTES
    store.release(slot)
    store.release(slot)
    assert (store.used_bytes, store.n_open) == (BLOCK_BYTES, 1)
    store.release(other)
    assert store.used_bytes == 0


def test_no_slot_is_opened_beyond_the_budget() -> None:
    store = SlotStore(LAYOUT, budget_bytes=BLOCK_BYTES)
    store.open(10)
    with pytest.raises(OutOfSlotsError, match="1 open slots"):
        store.open(10)
    assert store.n_open == 1


def test_a_reservation_is_all_or_nothing() -> None:
    store = SlotStore(LAYOUT, budget_bytes=3 * BLOCK_BYTES)
    a, b = store.open(5000), store.open(5000)
    with pytest.raises(OutOfSlotsError):
        store.reserve([(a, BLOCK_TOKENS + 1), (b, BLOCK_TOKENS + 1)])
    assert (a.n_blocks, b.n_blocks) == (1, 1)


def test_capacity_is_a_hard_limit() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * BLOCK_BYTES)
    slot = store.open(3)
    with pytest.raises(ContextOverflowError):
        append(store, slot, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="at least 1"):
        store.open(0)


def test_a_released_slot_is_refused() -> None:
    store = SlotStore(LAYOUT, budget_bytes=10 * BLOCK_BYTES)
    slot = store.open(3)
    store.release(slot)
    with pytest.raises(ValueError, match="not open"):
        store.reserve([(slot, 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fresh_memory_is_zero_so_that_masked_rows_stay_finite(dtype: torch.dtype) -> None:
    store = SlotStore(KvLayout(LAYOUT.layers, dtype, torch.device("cpu")), budget_bytes=2 * BLOCK_BYTES)
    for _ in range(2):  # and so is memory that another session left
        slot = store.open(10)
        store.reserve([(slot, 10)])
        k, v = store.arena.view(3, slot.first_row, BLOCK_TOKENS)
        assert k.dtype == dtype
        assert k.shape == v.shape == (1, 1, BLOCK_TOKENS, 8)
        assert not k.any()
        assert not v.any()
        nan = torch.full((1, 10, 8), torch.nan, dtype=dtype)
        store.arena.write(3, torch.arange(slot.first_row, slot.first_row + 10), nan, nan)
        store.release(slot)


def test_an_emptied_slot_is_open_and_can_be_filled_again() -> None:
    store = SlotStore(LAYOUT, budget_bytes=2 * BLOCK_BYTES)
    slot = store.open(100)
    append(store, slot, [1, 2])
    store.empty(slot)
    assert (slot.length, store.used_bytes, store.n_open) == (0, 0, 1)
    append(store, slot, [3])
    assert held(store, slot, 0) == [3.0]


def test_a_prefix_is_inherited_and_the_source_keeps_its_own() -> None:
    store = SlotStore(LAYOUT, budget_bytes=9 * BLOCK_BYTES)
    source, heir = store.open(2000), store.open(2000)
    append(store, source, list(range(1, 701)))
    store.inherit(heir, source, 600)
    append(store, heir, [7000])
    assert held(store, heir, 3) == [*range(1, 601), 7000]
    assert held(store, source, 3) == list(range(1, 701))
    with pytest.raises(ValueError, match="cannot inherit"):
        store.inherit(heir, source, 10)


def test_a_budget_below_one_block_is_refused_with_the_option_to_raise() -> None:
    with pytest.raises(OutOfSlotsError, match="--kv-memory-mib"):
        SlotStore(LAYOUT, budget_bytes=BLOCK_BYTES - 1)


actions = st.lists(
    st.tuples(
        st.sampled_from(["open", "append", "cut", "empty", "release"]),
        st.integers(0, 5),
        st.integers(1, 1300),
    ),
    max_size=40,
)


@given(actions)
def test_any_life_of_many_slots_keeps_every_one_of_them(steps: list[tuple[str, int, int]]) -> None:
    """Growing, moving and pushing together never mixes sessions up, and no block is lost."""
    store = SlotStore(LAYOUT, budget_bytes=6 * BLOCK_BYTES)
    kept: dict[Slot, list[int]] = {}
    number = 0
    for action, which, n in steps:
        slot = list(kept)[which % len(kept)] if kept else None
        try:
            if action == "open":
                kept[store.open(5000)] = []
            elif slot is None:
                continue
            elif action == "append":
                new = list(range(number, number + n))
                append(store, slot, new)
                kept[slot], number = kept[slot] + new, number + n
            elif action == "cut":
                kept[slot] = kept[slot][: n % (len(kept[slot]) + 1)]
                slot.truncate(len(kept[slot]))
            elif action == "empty":
                store.empty(slot)
                kept[slot] = []
            else:
                store.release(slot)
                del kept[slot]
        except OutOfSlotsError:
            pass
        for one, ids in kept.items():
            assert one.ids == ids
            assert all(held(store, one, layer) == ids for layer in LAYOUT.layers)
        assert store.used_bytes == sum(one.n_blocks for one in kept) * BLOCK_BYTES
        assert store.used_bytes + store.free_tokens * LAYOUT.bytes_per_token == store.budget_bytes


def test_scattered_room_is_pushed_together() -> None:
    store = SlotStore(LAYOUT, budget_bytes=6 * BLOCK_BYTES)
    slots = [store.open(5000) for _ in range(6)]
    for number, slot in enumerate(slots):
        append(store, slot, [number] * 100)
    for slot in slots[::2]:
        store.release(slot)
    append(store, slots[1], [1] * 1500)
    assert store.counts.compactions == 1
    assert held(store, slots[1], 0) == [1.0] * 1600
    assert [held(store, slot, 3) for slot in slots[3::2]] == [[3.0] * 100, [5.0] * 100]
