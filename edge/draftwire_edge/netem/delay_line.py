"""When bytes leave one direction of a link: pure, times and randomness are arguments.

Release = max(release before it, end of transmission + R/2 + jitter + time to recover what was lost).
A byte stream stays in order, so a late segment holds up those behind it, as TCP does; nothing else waits.

What a loss costs (the receiver gets nothing past the gap until it is filled):

* A segment that others follow: their acknowledgements tell, and it is sent again after one round trip
  (fast retransmit, RFC 5681 section 3.2; RACK, RFC 8985). It arrives R later.
* The last segment of what was written at once: nothing follows, so the timer has to run out. Linux waits
  SRTT + max(4·RTTVAR, 200 ms) (``tcp_set_rto``, ``TCP_RTO_MIN`` = HZ/5), and its tail loss probe for a
  single segment in flight, min(2·SRTT + 200 ms, RTO), is no sooner (``tcp_schedule_loss_probe``). It arrives
  R + 200 ms later. Each further loss doubles the timer (RFC 6298 section 5.5), to 120 s (``TCP_RTO_MAX``).

Not modelled: the congestion window, lost acknowledgements, RTTVAR above its floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from draftwire_edge.netem.conditions import Conditions

#: Payload of a full segment: 1500 bytes less 20 of IPv4, 20 of TCP and 12 of timestamps.
SEGMENT_BYTES = 1448
LEAST_RTO_S = 0.2
MOST_RTO_S = 120.0
#: A link with a rate hands bytes on in pieces of about this long, not in lumps as large as one read.
PIECE_S = 0.001
#: What a router holds back besides what is under way; an assumption.
BUFFER_S = 0.25
LEAST_HELD_BYTES = 64 * 1024
MOST_HELD_BYTES = 16 * 1024 * 1024


class Departure(NamedTuple):
    """``size`` bytes that may leave at ``release_s``."""

    release_s: float
    size: int


def propagation_s(conditions: Conditions) -> float:
    """R / 2."""
    return conditions.rtt_s / 2.0


def queueing_s(conditions: Conditions, rng: Random) -> float:
    """Jitter of one direction: exponential with mean J / 2, the time in an M/M/1 queue."""
    mean_s = conditions.jitter_ms / 2000.0
    return rng.expovariate(1.0 / mean_s) if mean_s else 0.0


def transmission_s(size: int, conditions: Conditions) -> float:
    """Size / rate."""
    return size / conditions.bytes_per_s if conditions.bytes_per_s else 0.0


def timeout_s(conditions: Conditions, rng: Random) -> float:
    """RTO + 2·RTO + 4·RTO + ..., one term for each time the segment is lost again."""
    rto_s = conditions.rtt_s + LEAST_RTO_S
    waited_s = rto_s
    while rng.random() < conditions.loss:
        rto_s = min(2.0 * rto_s, MOST_RTO_S)
        waited_s += rto_s
    return waited_s


def recovery_s(size: int, conditions: Conditions, rng: Random, *, tail: bool) -> float:
    """How much later a piece is complete because segments of it were lost.

    Args:
        size: bytes of the piece.
        conditions: R and the chance of a loss.
        rng: two or more draws where there is loss, none where there is not.
        tail: whether nothing was written right behind the piece.
    """
    if not conditions.loss:
        return 0.0
    followed = math.ceil(size / SEGMENT_BYTES) - tail
    if tail and rng.random() < conditions.loss:
        return timeout_s(conditions, rng)
    if rng.random() >= 1.0 - (1.0 - conditions.loss) ** followed:
        return 0.0
    lost_again = rng.random() < conditions.loss
    return conditions.rtt_s + (timeout_s(conditions, rng) if lost_again else 0.0)


def pieces(size: int, conditions: Conditions) -> Iterator[int]:
    """Sizes that add up to ``size``: one without a rate, else about a millisecond each."""
    rate = conditions.bytes_per_s
    piece = size if rate is None else max(SEGMENT_BYTES, int(rate * PIECE_S))
    while size > 0:
        yield min(piece, size)
        size -= piece


def most_held_bytes(conditions: Conditions) -> int:
    """Bytes one direction holds before it stops reading: rate · (R + J + 250 ms), 64 KiB to 16 MiB."""
    if conditions.bytes_per_s is None:
        return MOST_HELD_BYTES
    under_way_s = conditions.rtt_s + conditions.jitter_ms / 1000.0 + BUFFER_S
    return int(min(max(conditions.bytes_per_s * under_way_s, LEAST_HELD_BYTES), MOST_HELD_BYTES))


class Bottleneck:
    """The transmitter of one direction, shared by all connections: first come, first served."""

    def __init__(self) -> None:
        self._free_s = -math.inf

    def send(self, arrival_s: float, size: int, conditions: Conditions) -> float:
        """When the last bit is out."""
        self._free_s = max(arrival_s, self._free_s) + transmission_s(size, conditions)
        return self._free_s


class DelayLine:
    """One direction of one connection.

    Args:
        bottleneck: the direction's transmitter.
        rng: this line's own, so that no other connection or direction changes its draws.
        not_before_s: nothing leaves earlier, e.g. because the connection is still being set up.
    """

    def __init__(self, bottleneck: Bottleneck, rng: Random, not_before_s: float = -math.inf) -> None:
        self._bottleneck = bottleneck
        self._rng = rng
        self._last_s = not_before_s

    def schedule(self, arrival_s: float, size: int, conditions: Conditions) -> list[Departure]:
        """When ``size`` bytes that were written at once leave, piece by piece."""
        way_s = propagation_s(conditions) + queueing_s(conditions, self._rng)
        left = size
        departures = []
        for piece in pieces(size, conditions):
            left -= piece
            sent_s = self._bottleneck.send(arrival_s, piece, conditions)
            late_s = recovery_s(piece, conditions, self._rng, tail=left == 0)
            self._last_s = max(self._last_s, sent_s + way_s + late_s)
            departures.append(Departure(self._last_s, piece))
        return departures

    def end(self, arrival_s: float, conditions: Conditions) -> float:
        """When an end of stream or a reset arrives: behind all bytes, and never lost."""
        self._last_s = max(self._last_s, arrival_s + propagation_s(conditions))
        return self._last_s
