"""Which ids of two vocabularies stand for each other, above all at the end of a text."""

from dataclasses import dataclass
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from draftwire_edge.drafters.cross_vocab import SharedIds
from draftwire_edge.target_tokenizer import TargetTokenizer
from draftwire_edge.tokenizer import GgufTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """What is asked of either tokenizer."""

    pieces: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    eos_id: int | None

    def key(self, token: int) -> tuple[bytes, bool]:
        return self.pieces[token], token in self.special_ids


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """A handful of ids, of which several may be spelled alike and any may end a text."""
    pieces = draw(st.lists(st.sampled_from([b"", b"a", b"<e>", b"<f>", b"<g>"]), min_size=1, max_size=6))
    some = st.sets(st.integers(0, len(pieces) - 1))
    ends = tuple(sorted(draw(some)))
    main = draw(st.sampled_from([*ends, None])) if ends else None
    return Vocabulary(pieces, frozenset(draw(some)), ends, main)


def shared_ids(own: Vocabulary, target: Vocabulary) -> SharedIds:
    return SharedIds(cast("GgufTokenizer", own), cast("TargetTokenizer", target))


A_B_MAIN_A = Vocabulary([b"<e>", b"<f>"], frozenset({0, 1}), (0, 1), 0)
ONLY_G = Vocabulary([b"<g>"], frozenset({0}), (0,), 0)
#: "<e>" is there, but ends nothing here.
G_BESIDE_E = Vocabulary([b"<e>", b"<g>"], frozenset({0, 1}), (1,), 1)


@given(vocabularies(), vocabularies())
@example(ONLY_G, A_B_MAIN_A)
@example(G_BESIDE_E, A_B_MAIN_A)
def test_alike_or_both_main_ends_and_never_without_an_end(own: Vocabulary, target: Vocabulary) -> None:
    own_of = shared_ids(own, target).own_of
    theirs = target.eos_id if target.eos_id is not None else next(iter(target.eos_ids), None)
    for token, ours in own_of.items():
        assert own.key(ours) == target.key(token) or (token, ours) == (theirs, own.eos_id)
    # One draft id's logit never counts for two of the target's.
    assert len(set(own_of.values())) == len(own_of)
    if own.eos_id is not None and theirs is not None:
        alike = {token for token in target.eos_ids if own_of.get(token) in own.eos_ids}
        assert alike
        # The draft model's main end is read, unless another of its ends is spelled like the target's.
        assert own_of.get(theirs) in own.eos_ids or own.eos_id in {own_of[token] for token in alike}


def test_the_main_ends_stand_for_each_other_where_no_end_is_spelled_alike() -> None:
    assert shared_ids(ONLY_G, A_B_MAIN_A).own_of == {0: 0}
    assert shared_ids(G_BESIDE_E, A_B_MAIN_A).own_of == {0: 1}


def test_a_second_end_in_common_does_not_hide_the_main_ones() -> None:
    own = Vocabulary([b"<g>", b"<f>"], frozenset({0, 1}), (0, 1), 0)
    assert shared_ids(own, A_B_MAIN_A).own_of == {0: 0, 1: 1}
    # Here the target's main end is one of the draft model's, though not the main one: it says enough.
    own = Vocabulary([b"<g>", b"<e>"], frozenset({0, 1}), (0, 1), 0)
    assert shared_ids(own, A_B_MAIN_A).own_of == {0: 1}
