"""When bytes leave one direction of an emulated link: formulas, no clock, no socket."""

import math
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.delay_line import (
    MOST_HELD_BYTES,
    SEGMENT_BYTES,
    Bottleneck,
    DelayLine,
    most_held_bytes,
    pieces,
    propagation_s,
    queueing_s,
    recovery_s,
    timeout_s,
    transmission_s,
)
from draftwire_edge.netem.link import Link
from draftwire_edge.netem.profiles import PROFILES
from draftwire_protocol.errors import UserInputError

CONDITIONS = st.builds(
    Conditions,
    rtt_ms=st.floats(0, 1000),
    jitter_ms=st.floats(0, 300),
    rate_kbit=st.none() | st.floats(100, 1e6),
    loss=st.floats(0, 0.5),
)
#: Seconds after the chunk before, bytes, conditions at that moment.
CHUNKS = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 100_000), CONDITIONS), min_size=1, max_size=30)
Chunks = list[tuple[float, int, Conditions]]
ALL = Conditions(rtt_ms=40, jitter_ms=30, rate_kbit=5_000, loss=0.05)


def run(line: DelayLine, chunks: Chunks) -> list[tuple[float, float, int, Conditions]]:
    """Arrival, release, size and conditions of every piece."""
    now, out = 0.0, []
    for pause, size, conditions in chunks:
        now += pause
        out += [(now, release, part, conditions) for release, part in line.schedule(now, size, conditions)]
    return out


@given(CHUNKS, st.integers())
def test_bytes_stay_in_order_and_none_is_early_or_missing(chunks: Chunks, seed: int) -> None:
    moved = run(DelayLine(Bottleneck(), Random(seed)), chunks)
    assert sum(size for _, _, size, _ in moved) == sum(size for _, size, _ in chunks)
    assert all(before[1] <= after[1] for before, after in pairwise(moved))
    for arrival, release, size, conditions in moved:
        least = propagation_s(conditions) + transmission_s(size, conditions)
        assert release >= arrival + least - 1e-9


@given(CHUNKS, st.integers())
def test_same_seed_same_times(chunks: Chunks, seed: int) -> None:
    first, second = (run(DelayLine(Bottleneck(), Random(seed)), chunks) for _ in range(2))
    assert first == second


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=40), st.floats(100, 1e5), st.integers(1, 3))
def test_the_rate_is_kept_whoever_shares_it(sizes: list[int], rate_kbit: float, sharers: int) -> None:
    conditions, bottleneck = Conditions(rate_kbit=rate_kbit), Bottleneck()
    lines = [DelayLine(bottleneck, Random(0)) for _ in range(sharers)]
    moved = [lines[i % sharers].schedule(0.0, size, conditions) for i, size in enumerate(sizes)]
    last = max(release for departures in moved for release, _ in departures)
    assert last == pytest.approx(sum(sizes) * 8 / (rate_kbit * 1000))


def test_a_rate_lets_a_large_write_out_bit_by_bit() -> None:
    conditions = Conditions(rtt_ms=20, rate_kbit=16_000)
    times = [one.release_s for one in DelayLine(Bottleneck(), Random(0)).schedule(5.0, 100_000, conditions)]
    assert times[0] == pytest.approx(5.0 + 0.010 + 0.001)
    assert times[-1] == pytest.approx(5.0 + 0.010 + 0.050)


def test_pauses_are_not_made_up_for() -> None:
    line, conditions = DelayLine(Bottleneck(), Random(0)), Conditions(rate_kbit=8)
    assert line.schedule(0.0, 1000, conditions)[-1].release_s == pytest.approx(1.0)
    assert line.schedule(9.0, 1000, conditions)[-1].release_s == pytest.approx(10.0)


@given(CHUNKS, CHUNKS)
def test_directions_and_connections_do_not_touch_each_other(mine: Chunks, other: Chunks) -> None:
    quiet, busy = Link(Conditions(), seed=3), Link(Conditions(), seed=3)
    up, _ = quiet.open(0.0)
    busy_up, busy_down = busy.open(0.0)
    run(busy_down, other)
    run(busy.open(0.0)[1], other)
    assert run(up, mine) == run(busy_up, mine)


def test_directions_and_seeds_draw_differently() -> None:
    conditions = Conditions(jitter_ms=50)
    times = [
        line.schedule(0.0, 1, conditions)[0].release_s
        for seed in (1, 2)
        for line in Link(conditions, seed).open(0.0)
    ]
    assert len(set(times)) == 4


def test_setting_up_takes_a_round_trip() -> None:
    conditions = Conditions(rtt_ms=100)
    up, down = Link(conditions).open(7.0)
    assert up.schedule(7.0, 10, conditions)[0].release_s == pytest.approx(7.150)
    assert down.schedule(7.0, 10, conditions)[0].release_s == pytest.approx(7.200)
    assert up.schedule(8.0, 10, conditions)[0].release_s == pytest.approx(8.050)


def test_jitter_adds_its_figure_to_a_round_trip_on_average() -> None:
    rng, conditions = Random(0), Conditions(jitter_ms=20)
    draws = [queueing_s(conditions, rng) for _ in range(20_000)]
    assert mean(draws) == pytest.approx(0.010, rel=0.03)
    assert min(draws) >= 0.0
    assert queueing_s(Conditions(), rng) == 0.0


def test_a_lost_tail_waits_for_the_timer_and_another_segment_for_one_round_trip() -> None:
    conditions = Conditions(rtt_ms=100, loss=0.01)
    late = [recovery_s(100, conditions, Random(seed), tail=True) for seed in range(20_000)]
    assert mean(one > 0 for one in late) == pytest.approx(0.01, rel=0.25)
    assert min(one for one in late if one) == pytest.approx(0.3)
    inner = [recovery_s(SEGMENT_BYTES, conditions, Random(seed), tail=False) for seed in range(20_000)]
    assert min(one for one in inner if one) == pytest.approx(0.1)
    many = [recovery_s(10 * SEGMENT_BYTES, conditions, Random(seed), tail=False) for seed in range(5_000)]
    assert mean(one > 0 for one in many) == pytest.approx(1 - 0.99**10, rel=0.15)


def test_the_timer_doubles() -> None:
    waits = {round(timeout_s(Conditions(rtt_ms=100, loss=0.5), Random(seed)), 6) for seed in range(500)}
    assert {0.3, 0.9, 2.1, 4.5} <= waits
    assert all(math.log2(wait / 0.3 + 1).is_integer() for wait in sorted(waits)[:5])


def test_no_loss_draws_nothing() -> None:
    rng = Random(1)
    assert recovery_s(10, Conditions(rtt_ms=5), rng, tail=True) == 0.0
    assert rng.random() == Random(1).random()


def test_an_end_follows_all_bytes() -> None:
    line, conditions = DelayLine(Bottleneck(), Random(0)), Conditions(rtt_ms=50, rate_kbit=8)
    last = line.schedule(0.0, 500, conditions)[-1].release_s
    assert line.end(0.0, conditions) == last
    assert line.end(9.0, conditions) == pytest.approx(9.025)


@given(st.integers(1, 1_000_000), CONDITIONS)
def test_pieces_add_up(size: int, conditions: Conditions) -> None:
    parts = list(pieces(size, conditions))
    assert sum(parts) == size
    assert min(parts) > 0


def test_what_is_held_is_bounded_but_lets_every_profile_run_at_its_rate() -> None:
    assert most_held_bytes(Conditions(rtt_ms=600)) == MOST_HELD_BYTES
    for profile in PROFILES.values():
        for step in profile.steps:
            rate = step.conditions.bytes_per_s
            assert rate is not None
            under_way = rate * (step.conditions.rtt_s / 2 + step.conditions.jitter_ms / 1000)
            assert under_way < most_held_bytes(step.conditions) <= MOST_HELD_BYTES


@pytest.mark.parametrize(
    ("option", "figures"),
    [
        ("--rtt-ms", {"rtt_ms": -1.0}),
        ("--rtt-ms", {"rtt_ms": math.nan}),
        ("--jitter-ms", {"jitter_ms": math.inf}),
        ("--rate-kbit", {"rate_kbit": 0.0}),
        ("--rate-kbit", {"rate_kbit": math.inf}),
        ("--loss", {"loss": 1.0}),
        ("--loss", {"loss": -0.1}),
    ],
)
def test_figures_out_of_range_are_refused_by_name(option: str, figures: dict[str, float]) -> None:
    with pytest.raises(UserInputError) as caught:
        Conditions(**figures)
    assert caught.value.argument == option
