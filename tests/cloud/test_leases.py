"""KV slots between streams: reused, expired, dropped under pressure, never leaked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.leases import Leases
from draftwire_protocol.errors import OverloadedError


class FakeSlot:
    """A slot that only remembers ids."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        del self.ids[length:]


class FakeStore:
    """Room for a fixed number of slots."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.open_slots: set[FakeSlot] = set()

    def open(self, capacity: int) -> FakeSlot:
        if len(self.open_slots) >= self.room:
            raise OverloadedError("full")
        slot = FakeSlot(capacity)
        self.open_slots.add(slot)
        return slot

    def release(self, slot: FakeSlot) -> None:
        self.open_slots.remove(slot)

    def empty(self, slot: FakeSlot) -> None:
        slot.ids = []

    def inherit(self, slot: FakeSlot, source: FakeSlot, n: int) -> None:
        assert not slot.ids
        slot.ids = source.ids[:n]


def test_a_parked_slot_keeps_its_common_prefix() -> None:
    leases = Leases(FakeStore(2), 10.0)
    slot, cached = leases.take("a", [1, 2, 3], 8)
    assert cached == 0
    slot.ids = [1, 2, 9, 9]
    leases.park("a", slot, now=0.0)
    again, cached = leases.take("a", [1, 2, 3, 4], 8)
    assert (again, cached, again.ids) == (slot, 2, [1, 2])


def test_the_next_turn_of_a_chat_keeps_its_prefix_though_it_is_longer() -> None:
    store = FakeStore(2)
    leases = Leases(store, 10.0)
    slot, _ = leases.take("a", [1, 2], 4)
    slot.ids = [1, 2, 3]
    leases.park("a", slot, now=0.0)
    again, cached = leases.take("a", [1, 2, 3, 4, 5], 9)
    assert (again, cached, again.capacity) == (slot, 3, 9)
    assert len(store.open_slots) == 1


def test_the_last_id_is_always_fed_again() -> None:
    leases = Leases(FakeStore(1), 10.0)
    slot, _ = leases.take("a", [1], 8)
    slot.ids = [1, 2, 3]
    leases.park("a", slot, 0.0)
    assert leases.take("a", [1, 2, 3], 8)[1] == 2


def test_leases_end_and_pressure_drops_the_oldest() -> None:
    store = FakeStore(2)
    leases = Leases(store, 10.0)
    for name in ("a", "b"):
        leases.park(name, leases.take(name, [1], 4)[0], now=float(ord(name)))
    leases.take("c", [1], 4)
    assert (leases.num_parked, len(store.open_slots)) == (1, 2)
    leases.expire(now=float(ord("b")) + 10.0)
    assert (leases.num_parked, len(store.open_slots)) == (0, 1)


def test_no_room_at_all_is_refused() -> None:
    leases = Leases(FakeStore(1), 10.0)
    leases.take("a", [1], 4)
    with pytest.raises(OverloadedError):
        leases.take("b", [1], 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "park", "expire"])), max_size=40))
def test_every_open_slot_is_held_or_parked(steps: list[tuple[str, str]]) -> None:
    store, held, now = FakeStore(50), [], 0.0
    leases = Leases(store, 5.0)
    for name, step in steps:
        now += 1.0
        if step == "take":
            held.append((name, leases.take(name, [1, 2], 4)[0]))
        elif step == "park" and held:
            leases.park(*held.pop(0), now)
        else:
            leases.expire(now)
        assert len(store.open_slots) == len(held) + leases.num_parked
