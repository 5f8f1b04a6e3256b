"""Sessions stay where they are, move when they must, and are forgotten when they ended."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from draftwire_cloud.replicas.router import Place, Router
from draftwire_protocol.errors import CloudUnavailableError

REMEMBER_S, MOST, REPLICAS = 10.0, 3, 3


def router(n: int = 2) -> Router:
    made = Router(REMEMBER_S, MOST)
    for replica in range(n):
        made.up(replica)
    return made


def test_new_sessions_go_where_the_fewest_streams_are() -> None:
    routes = router(3)
    places = [routes.open(f"s{i}", 0.0).replica for i in range(6)]
    assert sorted(places) == [0, 0, 1, 1, 2, 2]


def test_sessions_that_come_one_after_another_are_spread_too() -> None:
    routes = router(2)
    seen = []
    for i in range(2):
        place = routes.open(f"s{i}", 0.0)
        seen.append(place.replica)
        routes.close(place, 0.0)
    assert seen == [0, 1]


def test_the_next_turn_finds_its_replica_until_it_is_forgotten() -> None:
    routes = router(2)
    routes.close(routes.open("a", 0.0), 1.0)
    busy = [routes.open("x", 1.0), routes.open("y", 1.0)]
    assert [one.replica for one in busy] == [1, 0]
    routes.close(busy[0], 1.0)
    again = routes.open("a", 10.9)  # replica 1 has fewer streams
    assert again.replica == 0
    routes.close(again, 11.0)
    assert routes.open("a", 21.0).replica == 1


def test_a_dead_replica_s_sessions_move_and_stay_where_they_moved() -> None:
    routes = router(2)
    left = routes.open("a", 0.0)
    assert left.replica == 0
    routes.down(0)
    moved = routes.open("a", 1.0)
    routes.up(0)
    routes.close(left, 2.0)  # the stream on the dead replica is missed only now
    assert moved.replica == 1
    assert routes.open("a", 3.0) is moved
    routes.close(moved, 4.0)
    routes.close(moved, 4.0)
    assert routes.open("a", 5.0).replica == 1


def test_nobody_there_is_said_so_that_the_edge_tries_again() -> None:
    routes = router(1)
    routes.down(0)
    with pytest.raises(CloudUnavailableError, match="can be resumed"):
        routes.open("a", 0.0)
    assert routes.num_sessions == 0


class RouterMachine(RuleBasedStateMachine):
    """Any order of events: the router knows open streams, a few that ended, and nothing else."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.router = Router(REMEMBER_S, MOST)
        self.streams: list[Place] = []
        #: Where each session's latest stream went, unless that replica died since.
        self.where: dict[str, int] = {}
        self.ended: dict[str, float] = {}

    @rule(replica=st.integers(0, REPLICAS - 1))
    def up(self, replica: int) -> None:
        self.router.up(replica)

    @rule(replica=st.integers(0, REPLICAS - 1))
    def down(self, replica: int) -> None:
        self.router.down(replica)
        self.where = {key: at for key, at in self.where.items() if at != replica}

    @rule(seconds=st.integers(0, 20))  # whole ones, so that sums are exact
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("abcdefgh"))
    def open(self, name: str) -> None:
        live = self.router.live
        if not live:
            with pytest.raises(CloudUnavailableError):
                self.router.open(name, self.now)
            return
        counts = {one: sum(stream.replica == one for stream in self.streams) for one in live}
        place = self.router.open(name, self.now)
        assert place.replica in live
        is_open = any(stream is place for stream in self.streams)
        if is_open:
            assert self.where[name] == place.replica
        elif place.replica != self.where.get(name):
            assert counts[place.replica] == min(counts.values())
        self.streams.append(place)
        self.where[name] = place.replica

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.streams:
            place = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
            self.router.close(place, self.now)

    @invariant()
    def nothing_else_is_kept(self) -> None:
        open_now = {(place.session_id, place.replica) for place in self.streams}
        assert self.router.num_sessions <= len(open_now) + MOST
        assert sum(self.router._streams.values()) == len(self.streams)
        known = [*self.router._open.values(), *self.router._ended.values()]
        for replica in range(REPLICAS):
            assert self.router._sessions[replica] == sum(one.replica == replica for one in known)
        assert all(place.replica in self.router.live for place in known)

    def teardown(self) -> None:
        for place in self.streams:
            self.router.close(place, self.now)
        self.router.up(0)
        self.router.close(self.router.open("last", self.now + REMEMBER_S), self.now + REMEMBER_S)
        assert self.router.num_sessions == 1


TestAnyOrder = RouterMachine.TestCase
