"""Which replica a session goes to. Pure: time comes in as an argument."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from draftwire_protocol.errors import CloudUnavailableError


@dataclass(slots=True, eq=False)
class Place:
    """Where a session is. One that moved has another Place, so streams left behind cannot confuse it."""

    session_id: str
    replica: int
    #: Streams open there now: two for a moment, where an edge came back before its old one was missed.
    streams: int = 0
    #: When the last of them ended, in seconds.
    ended_at: float = 0.0


class Router:
    """Sends sessions where their keys and values are, and new ones where there is most room.

    Args:
        remember_s: how long a session without a stream is remembered, in seconds.
        most: how many of those are remembered; the one that ended longest ago is forgotten first.
    """

    def __init__(self, remember_s: float, most: int = 10_000) -> None:
        self._remember_s = remember_s
        self._most = most
        self._live: set[int] = set()
        self._open: dict[str, Place] = {}
        self._ended: OrderedDict[str, Place] = OrderedDict()
        #: By replica: streams open, and sessions with or without one.
        self._streams: Counter[int] = Counter()
        self._sessions: Counter[int] = Counter()

    @property
    def live(self) -> frozenset[int]:
        """Replicas that answer."""
        return frozenset(self._live)

    @property
    def num_sessions(self) -> int:
        """Sessions remembered, with or without a stream."""
        return len(self._open) + len(self._ended)

    def up(self, replica: int) -> None:
        """A replica answers from now on."""
        self._live.add(replica)

    def down(self, replica: int) -> None:
        """A replica is gone, and with it what it held: its sessions go elsewhere when they come back."""
        self._live.discard(replica)
        for sessions in (self._open, self._ended):
            for place in [one for one in sessions.values() if one.replica == replica]:
                del sessions[place.session_id]
        del self._sessions[replica]

    def open(self, session_id: str, now: float) -> Place:
        """A stream of a session begins; ``close`` must follow.

        Args:
            session_id: as the edge chose it.
            now: in seconds.

        Raises:
            CloudUnavailableError: no replica answers.
        """
        self._forget(now)
        place = self._open.get(session_id) or self._ended.pop(session_id, None)
        if place is None:
            place = Place(session_id, self.any())
            self._sessions[place.replica] += 1
        self._open[session_id] = place
        place.streams += 1
        self._streams[place.replica] += 1
        return place

    def close(self, place: Place, now: float) -> None:
        """A stream ended, at ``now``; its session is remembered for a while."""
        place.streams -= 1
        self._streams[place.replica] -= 1
        if place.streams == 0 and self._open.get(place.session_id) is place:
            del self._open[place.session_id]
            place.ended_at = now
            self._ended[place.session_id] = place
            self._forget(now)

    def any(self) -> int:
        """The live replica with the fewest open streams; of several, the one with the fewest sessions.

        Raises:
            CloudUnavailableError: no replica answers.
        """
        if not self._live:
            raise CloudUnavailableError("no replica answers now; the session can be resumed")
        return min(self._live, key=lambda one: (self._streams[one], self._sessions[one], one))

    def _forget(self, now: float) -> None:
        """Sessions that ended too long ago, or too many of them."""
        while self._ended:
            place = next(iter(self._ended.values()))
            if len(self._ended) <= self._most and now - place.ended_at < self._remember_s:
                return
            del self._ended[place.session_id]
            self._sessions[place.replica] -= 1
