from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.engine.arena import Arena
from draftwire_cloud.engine.layout import KvLayout
from draftwire_cloud.engine.packing import Plan, Span, make_plan
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.slots import Slot

CPU = torch.device("cpu")
POLICIES = [ShapePolicy.off(), ShapePolicy(4, 512, (3, 4, 5, 6, 8, 12)), ShapePolicy.for_gpu()]


class Wish(NamedTuple):
    """A span to be: tokens held, new tokens, logits wanted."""

    past: int
    n_new: int
    num_logits: int


def wishes() -> st.SearchStrategy[list[Wish]]:
    one = st.tuples(st.integers(0, 600), st.integers(1, 20)).flatmap(
        lambda pair: st.builds(Wish, st.just(pair[0]), st.just(pair[1]), st.integers(0, pair[1]))
    )
    return st.lists(one, min_size=1, max_size=5)


NOWHERE = Arena(KvLayout({}, torch.float32, CPU), 0)


def span(wish: Wish, first_id: int = 0, block: int = 0) -> Span:
    slot = Slot(capacity=1000)
    slot.ids = [0] * wish.past
    slot.start, slot.n_placed = block, 2
    return Span(slot, list(range(first_id, first_id + wish.n_new)), wish.num_logits)


def plan_of(wanted: list[Wish], policy: ShapePolicy) -> tuple[list[Span], Plan]:
    spans = [span(wish, 100 * i, 2 * i) for i, wish in enumerate(wanted)]
    return spans, make_plan(spans, policy, NOWHERE, CPU)


@given(wishes(), st.sampled_from(POLICIES))
def test_every_new_token_has_one_row_and_its_own_position(wanted: list[Wish], policy: ShapePolicy) -> None:
    spans, plan = plan_of(wanted, policy)
    n_real = sum(wish.n_new for wish in wanted)
    assert plan.input_ids.shape == plan.position_ids.shape == (1, policy.rows(n_real))
    end = 0
    for one, placed, wish in zip(spans, plan.placed, wanted, strict=True):
        assert placed.rows == slice(end, end + wish.n_new)
        end = placed.rows.stop
        assert plan.input_ids[0, placed.rows].tolist() == one.ids
        expected = range(wish.past, wish.past + wish.n_new)
        assert plan.position_ids[0, placed.rows].tolist() == list(expected)
    assert not plan.input_ids[0, end:].any()
    assert not plan.position_ids[0, end:].any()


@given(wishes(), st.sampled_from(POLICIES))
def test_each_span_gets_the_logits_of_its_last_rows(wanted: list[Wish], policy: ShapePolicy) -> None:
    _, plan = plan_of(wanted, policy)
    total = sum(wish.num_logits for wish in wanted)
    if plan.logit_rows is None:
        assert total == 0
        return
    assert len(plan.logit_rows) == policy.rows(total)
    for placed, part, wish in zip(plan.placed, plan.logit_ranges, wanted, strict=True):
        rows = plan.logit_rows[part].tolist()
        assert rows == list(range(placed.rows.stop - wish.num_logits, placed.rows.stop))


def masks(plan: Plan, window: int | None) -> list[torch.Tensor]:
    """Each span's part of its group's mask, in the order of the spans."""
    found: dict[int, torch.Tensor] = {}
    for index, group in enumerate(plan.groups):
        mask = plan.mask(index, window)
        bias = plan.bias(index, window, torch.float32)
        assert torch.equal(bias == 0, mask)
        assert torch.equal(bias == -torch.inf, ~mask)
        found |= {member: mask[i, 0] for i, member in enumerate(group.members)}
    return [found[i] for i in range(len(plan.placed))]


@given(wishes(), st.sampled_from(POLICIES))
def test_rows_find_their_queries_and_their_place(wanted: list[Wish], policy: ShapePolicy) -> None:
    spans, plan = plan_of(wanted, policy)
    n_real = sum(wish.n_new for wish in wanted)
    assert sorted(member for group in plan.groups for member in group.members) == list(range(len(wanted)))
    # To its query row and back every real row is itself, and every query row belongs to its group.
    assert plan.query_rows[plan.output_rows[:n_real]].tolist() == list(range(n_real))
    assert len(plan.query_rows) == sum(len(g.members) * g.n_queries for g in plan.groups)
    at = 0
    for group in plan.groups:
        for number, member in enumerate(group.members):
            placed = plan.placed[member]
            assert (placed.n_queries, placed.n_keys) == (group.n_queries, group.n_keys)
            assert placed.first_row == group.first_row + number * group.stride
            rows = plan.query_rows[at : at + group.n_queries].tolist()
            real = list(range(placed.rows.start, placed.rows.stop))
            assert rows == real + [real[-1]] * (group.n_queries - len(real))
            at += group.n_queries
    places = [s.slot.first_row + s.slot.length + i for s in spans for i in range(len(s.ids))]
    assert plan.kv_rows.tolist() == places


def test_equal_short_spans_share_one_attention_call_and_long_ones_do_not() -> None:
    short, long = Wish(10, 6, 6), Wish(10, 100, 0)
    _, plan = plan_of([short, long, short, short, long], ShapePolicy())
    # Slots 0 and 2 lie four blocks apart, and slot 3 two further: one step does not reach all three.
    assert [group.members for group in plan.groups] == [(0, 2), (3,), (1,), (4,)]
    _, plan = plan_of([short] * 5, ShapePolicy())
    assert [group.members for group in plan.groups] == [(0, 1, 2, 3, 4)]


@given(wishes(), st.sampled_from(POLICIES), st.none() | st.integers(1, 30))
def test_masks_show_the_past_and_never_the_future(
    wanted: list[Wish], policy: ShapePolicy, window: int | None
) -> None:
    _, plan = plan_of(wanted, policy)
    for placed, wish, mask in zip(plan.placed, wanted, masks(plan, window), strict=True):
        assert mask.shape == (policy.queries(wish.n_new), policy.keys(wish.past + wish.n_new))
        for row in range(wish.n_new):
            position = placed.past + row
            first = 0 if window is None else max(0, position - window + 1)
            assert mask[row].nonzero().flatten().tolist() == list(range(first, position + 1))
        assert bool(mask.any(dim=1).all()), "an empty row would be NaN"


def test_a_mask_is_made_once_for_all_layers() -> None:
    _, plan = plan_of([Wish(3, 2, 1)], POLICIES[1])
    assert plan.mask(0, None) is plan.mask(0, None)
    assert plan.mask(0, 2) is not plan.mask(0, None)


def test_two_spans_cannot_share_a_slot() -> None:
    one = span(Wish(0, 2, 1))
    with pytest.raises(ValueError, match="share a slot"):
        make_plan([one, Span(one.slot, [1], 1)], ShapePolicy(), NOWHERE, CPU)


@pytest.mark.parametrize(("ids", "num_logits"), [([], 0), ([1], 2), ([1], -1)])
def test_impossible_spans_are_refused(ids: list[int], num_logits: int) -> None:
    with pytest.raises(ValueError, match="token"):
        Span(Slot(10), ids, num_logits)


def test_keys_are_recognised_by_identity_only() -> None:
    _, plan = plan_of([Wish(0, 1, 1)], ShapePolicy())
    k = torch.zeros(1, 2, 3, 4)
    plan.remember_owner(k, 5)
    assert plan.owner(k) == 5
    assert plan.owner(k.clone()) is None
