"""Whoever always wants something gets the same, whatever the size of the pieces."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.fairness import DeficitRoundRobin


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6))
def test_equal_shares_for_pieces_of_any_size(sizes: list[int]) -> None:
    turns: DeficitRoundRobin[int] = DeficitRoundRobin(64)
    served = dict.fromkeys(range(len(sizes)), 0)
    for member in served:
        turns.add(member)
    for _ in range(50):
        for member in turns.members:
            turns.visit(member)
            while turns.credit(member) >= sizes[member]:
                turns.charge(member, sizes[member])
                served[member] += sizes[member]
            turns.to_back(member)
    assert max(served.values()) - min(served.values()) < 64


def test_silence_buys_no_burst() -> None:
    turns: DeficitRoundRobin[str] = DeficitRoundRobin(10)
    turns.add("a")
    for _ in range(5):
        turns.visit("a")
        turns.rest("a")
    assert turns.credit("a") == 0
    turns.charge("a", 7)
    turns.rest("a")
    assert turns.credit("a") == -7, "debts stay"


def test_members_come_and_go() -> None:
    turns: DeficitRoundRobin[str] = DeficitRoundRobin(10)
    for name in "abab":
        turns.add(name)
    turns.to_back("a")
    assert turns.members == ["b", "a"]
    turns.remove("b")
    turns.remove("b")
    assert len(turns) == 1
