"""The longest common beginning is found, among committed tokens of the same owner only."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.prefix_index import PIECE, PrefixIndex


@dataclass(eq=False)
class Slot:
    ids: list[int] = field(default_factory=list)


def shared(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


texts = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 200)), min_size=1, max_size=3).map(
    lambda runs: [token for token, n in runs for _ in range(n)]
)


@given(st.lists(st.tuples(texts, st.sampled_from("ab")), max_size=6), texts, st.sets(st.integers(0, 5)))
def test_no_slot_shares_a_longer_beginning_by_a_whole_piece(
    held: list[tuple[list[int], str]], prompt: list[int], forgotten: set[int]
) -> None:
    index: PrefixIndex[Slot] = PrefixIndex()
    slots = [(Slot(ids), owner) for ids, owner in held]
    for slot, owner in slots:
        index.note(slot, owner)
    for number in forgotten:
        if number < len(slots):
            index.forget(slots[number][0])
    left = [slot for number, (slot, owner) in enumerate(slots) if number not in forgotten and owner == "a"]
    found, n = index.longest(prompt, "a")
    most = max((shared(slot.ids, prompt[:-1]) for slot in left), default=0)
    assert n >= most // PIECE * PIECE
    assert (found is None) == (n == 0)
    if found is not None:
        assert found in left
        assert n == shared(found.ids, prompt[:-1])


def test_a_growing_slot_is_found_by_what_it_holds_now() -> None:
    index, slot = PrefixIndex[Slot](), Slot(list(range(PIECE)))
    index.note(slot, "a")
    slot.ids += range(PIECE, 3 * PIECE)
    index.note(slot, "a")
    assert index.longest(list(range(5 * PIECE)), "a") == (slot, 3 * PIECE)
    assert index.longest(list(range(5 * PIECE)), "b") == (None, 0)
    index.forget(slot)
    index.forget(slot)
    assert (len(index), index.longest(list(range(5 * PIECE)), "a")) == (0, (None, 0))


def test_a_slot_that_was_cut_back_is_named_anew() -> None:
    index, slot = PrefixIndex[Slot](), Slot([1] * 3 * PIECE)
    index.note(slot, "a")
    slot.ids = [1] * PIECE
    index.note(slot, "a")
    assert index.longest([1] * 5 * PIECE, "a") == (slot, PIECE)
