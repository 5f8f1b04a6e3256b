"""The event model against closed forms, known figures, and what no machine can beat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_sim.event_model import Costs, Figures, Policy, Turns, accepted, draw_matches, simulate

TOKENS = 4000
OVERLAPPED = (Turns.PIPELINED, Turns.DUPLEX)
CASES = [
    # c_d, t_v(1), b, R, α; ms per token: cloud, lockstep with the best γ, pipelined, duplex; passes: duplex
    (10.0, 50.0, 1.0, 30.0, 0.80, (50.0, 36.5, 28.35, 28.30), 0.550),
    (10.0, 50.0, 1.0, 100.0, 0.80, (50.0, 54.1, 42.30, 34.57), 0.681),
    (10.0, 50.0, 1.0, 400.0, 0.80, (50.0, 122.6, 102.1, 47.01), 0.938),
    (10.0, 50.0, 1.0, 60.0, 0.87, (50.0, 34.7, 25.31, 24.02), 0.466),
    (24.0, 200.0, 4.8, 30.0, 0.87, (200.0, 80.9, 64.87, 63.87), 0.292),
    (20.0, 25.0, 0.5, 30.0, 0.80, (25.0, 39.0, 29.24, 24.46), 0.978),
]
times = st.floats(0.01, 200.0)
costs_of_any_machine = st.builds(Costs, times, times, st.floats(0.0, 5.0), st.floats(0.0, 400.0))
policies = st.builds(Policy, st.sampled_from(Turns), st.integers(1, 20), st.none() | st.floats(0.0, 1.0))
match_lists = st.lists(st.booleans(), min_size=1, max_size=60)


def run(turns: Turns, costs: Costs, alpha: float, gamma: int = 64) -> Figures:
    return simulate(Policy(turns, gamma), costs, draw_matches(alpha, TOKENS + 400), TOKENS)


@pytest.mark.parametrize(("c_d", "t_v", "b", "round_trip", "alpha", "expected", "passes"), CASES)
def test_figures(
    c_d: float,
    t_v: float,
    b: float,
    round_trip: float,
    alpha: float,
    expected: tuple[float, ...],
    passes: float,
) -> None:
    costs = Costs(c_d, t_v - b, b, round_trip)
    cloud, pipelined, duplex = (run(turns, costs, alpha) for turns in (Turns.CLOUD, *OVERLAPPED))
    lockstep = min(run(Turns.LOCKSTEP, costs, alpha, gamma).ms_per_token for gamma in range(1, 17))
    found = (cloud.ms_per_token, lockstep, pipelined.ms_per_token, duplex.ms_per_token)
    assert found == pytest.approx(expected, rel=0.01)
    assert duplex.passes_per_token == pytest.approx(passes, rel=0.01)


@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_lockstep_follows_its_formula(gamma: int, alpha: float) -> None:
    costs = Costs(10.0, 49.0, 1.0, 60.0)
    found = run(Turns.LOCKSTEP, costs, alpha, gamma)
    expected = sum(alpha**k for k in range(gamma + 1))
    round_ms = gamma * 10.0 + 60.0 + costs.verify_ms(gamma + 1)
    assert found.ms_per_token == pytest.approx(round_ms / expected, rel=0.03)
    assert found.passes_per_token == pytest.approx(1 / expected, rel=0.03)


@given(costs_of_any_machine, st.integers(1, 64))
def test_pipelined_without_a_match_is_lockstep_of_one(costs: Costs, gamma: int) -> None:
    pipelined = simulate(Policy(Turns.PIPELINED, gamma), costs, [False] * 20)
    lockstep = simulate(Policy(Turns.LOCKSTEP, 1), costs, [False] * 20)
    # The last verdict need not travel back.
    last_ms = costs.round_trip_ms / 2 / 20
    assert pipelined.ms_per_token + last_ms == pytest.approx(lockstep.ms_per_token)
    assert pipelined.passes_per_token == 1.0


@pytest.mark.parametrize("turns", OVERLAPPED)
@pytest.mark.parametrize("round_trip", [0.0, 30.0, 200.0])
def test_without_a_miss_the_drafter_sets_the_pace(turns: Turns, round_trip: float) -> None:
    found = run(turns, Costs(10.0, 49.0, 1.0, round_trip), alpha=1.0)
    assert found.ms_per_token == pytest.approx(10.0, rel=0.02)
    assert found.drafted_per_token == pytest.approx(1.0, rel=0.02)


def test_a_full_window_waits_for_the_round_trip() -> None:
    # Of 4 tokens in flight the first comes back after c_d + R + t_v(2), or behind the pass before it.
    found = run(Turns.PIPELINED, Costs(1.0, 4.0, 0.0, 1000.0), alpha=1.0, gamma=4)
    assert found.ms_per_token > 1000.0 / 6


@given(costs_of_any_machine, match_lists, policies)
def test_nobody_is_faster_than_it_can_be(costs: Costs, matches: list[bool], policy: Policy) -> None:
    found = simulate(policy, costs, matches)
    slack = 1 + 1e-9
    assert found.drafted_per_token * costs.draft_ms <= found.ms_per_token * slack
    assert found.passes_per_token * costs.verify_ms(1) <= found.ms_per_token * slack
    assert found.passes_per_token <= 1


@given(costs_of_any_machine, match_lists, policies)
def test_duplex_is_the_cloud_alone_at_worst(costs: Costs, matches: list[bool], policy: Policy) -> None:
    policy = Policy(Turns.DUPLEX, policy.gamma, policy.alpha)
    # Useless drafts make a pass longer, never a second one necessary.
    assert simulate(policy, costs, matches).ms_per_token <= costs.verify_ms(1 + policy.gamma) * (1 + 1e-9)


@given(costs_of_any_machine, match_lists, policies)
def test_pipelined_pays_one_turn_a_pass_at_worst(costs: Costs, matches: list[bool], policy: Policy) -> None:
    policy = Policy(Turns.PIPELINED, policy.gamma, policy.alpha)
    turn_ms = costs.draft_ms * (1 + costs.catch_up) + costs.round_trip_ms + costs.verify_ms(1 + policy.gamma)
    assert simulate(policy, costs, matches).ms_per_token <= turn_ms * (1 + 1e-9)


@given(costs_of_any_machine, match_lists, policies)
def test_no_more_is_drafted_than_gamma_a_verdict(costs: Costs, matches: list[bool], policy: Policy) -> None:
    found = simulate(policy, costs, matches)
    # Before the first verdict, and after each, gamma may be under way.
    allowed = policy.gamma * (found.passes_per_token + 1 / len(matches))
    assert found.drafted_per_token <= allowed * (1 + 1e-9)


@pytest.mark.parametrize("catch_up", [0.0, 0.2, 1.0])
def test_a_slow_drafter_reads_what_the_cloud_wrote(catch_up: float) -> None:
    # The bonus token comes before its draft is ready: two tokens a turn, and one of them to be read.
    found = simulate(Policy(Turns.PIPELINED), Costs(100.0, 49.0, 1.0, 30.0, catch_up), [True] * 400)
    assert found.ms_per_token == pytest.approx((100.0 * (1 + catch_up) + 30.0 + 51.0) / 2, rel=0.01)


def test_drafting_stops_where_survival_is_worth_less_than_a_draft() -> None:
    costs, policy = Costs(10.0, 49.0, 1.0, 30.0), Policy(Turns.PIPELINED, 64, 0.8)
    # 0.8^(k + 1) > 11 / 30 up to k = 3.
    assert [policy.drafts_on(k, costs, 30.0) for k in (0, 1, 3, 4)] == [True, True, True, False]
    assert policy.drafts_on(4, costs, 300.0)
    assert policy.drafts_on(63, costs, None)
    assert not policy.drafts_on(64, costs, None)


@pytest.mark.parametrize("turns", [Turns.LOCKSTEP, *OVERLAPPED])
def test_a_believed_acceptance_saves_drafts(turns: Turns) -> None:
    costs, matches = Costs(10.0, 49.0, 1.0, 100.0), draw_matches(0.6, 400)
    stopped, on = (simulate(Policy(turns, 16, alpha), costs, matches) for alpha in (0.6, None))
    assert stopped.drafted_per_token < on.drafted_per_token


def test_accepted() -> None:
    assert accepted([True, True, False], 0, 3) == 2
    assert accepted([True, True, False], 2, 1) == 0
    assert accepted([True, True, False], 3, 2) == 2  # repeated


@pytest.mark.parametrize(
    "build",
    [
        lambda: Costs(-1.0, 1.0, 1.0, 1.0),
        lambda: Costs(1.0, 1.0, 1.0, float("nan")),
        lambda: Policy(Turns.LOCKSTEP, 0),
        lambda: Policy(Turns.LOCKSTEP, 1, 1.5),
        lambda: simulate(Policy(Turns.CLOUD), Costs(1.0, 1.0, 1.0, 1.0), []),
    ],
)
def test_what_makes_no_sense_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|cannot"):
        build()
