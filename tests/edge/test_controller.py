"""The controller on rounds from a known world: it must find what a full search finds."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_edge.branch import Judged
from draftwire_edge.controller import Controller, GammaPolicy, Plan, Prefer, Seen
from draftwire_edge.controller.estimators import RatioOfSums, VerifyTime
from draftwire_edge.controller.formulas import lockstep_tpot_ms, worth_drafting
from draftwire_edge.controller.link import LinkEstimate
from draftwire_edge.controller.survival import CalibratedAcceptance
from draftwire_edge.drafter import Guess
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import Mode


class World:
    """Independent acceptance with chance alpha; times in ms."""

    def __init__(self, alpha: float, draft_ms: float, base_ms: float, slope_ms: float, rtt_ms: float) -> None:
        self.alpha, self.draft_ms, self.base_ms = alpha, draft_ms, base_ms
        self.slope_ms, self.rtt_ms = slope_ms, rtt_ms
        self.random = random.Random(7)

    def verify_ms(self, n: int) -> float:
        return self.base_ms + self.slope_ms * n

    def round(self, gamma: int) -> Seen:
        """One lockstep round."""
        accepted = 0
        while accepted < gamma and self.random.random() < self.alpha:
            accepted += 1
        forward, guess = self.verify_ms(gamma + 1), Guess(0, self.alpha)
        tested = [Judged(guess, accepted=True)] * accepted + [Judged(guess, accepted=False)] * (
            gamma > accepted
        )
        wait = self.rtt_ms + forward
        return Seen(
            Mode.LOCKSTEP, tested, gamma, accepted + 1, gamma * self.draft_ms + wait, forward, forward, wait
        )

    def fill(self) -> Seen:
        """One token of the cloud alone."""
        ms = self.verify_ms(1)
        return Seen(Mode.CLOUD, [], 0, 1, ms, ms, ms)

    def tpot(self, gamma: int) -> float:
        return lockstep_tpot_ms(gamma, self.alpha, self.draft_ms, self.rtt_ms, self.verify_ms(gamma + 1))

    def best_gamma(self) -> int:
        return min(range(1, 65), key=self.tpot)


#: The modes of a link on which nobody drafts on.
WAITING = (Mode.LOCKSTEP, Mode.CLOUD)


def plan_of(controller: Controller) -> Plan:
    return controller.plan(100, WAITING)


def live_a_round(controller: Controller, world: World, confidence: float = 0.9) -> Seen:
    """Whatever the controller wants next."""
    if plan_of(controller).mode is Mode.CLOUD:
        seen = world.fill()
    else:
        gamma = drafted(controller, confidence=confidence)
        controller.observe_draft(gamma, gamma * world.draft_ms, Mode.LOCKSTEP)
        seen = world.round(gamma)
    controller.observe(seen)
    return seen


def drafted(controller: Controller, room: int = 1000, confidence: float = 0.9) -> int:
    """How far the controller lets a drafter go."""
    plan = controller.plan(room, WAITING)
    guesses: list[Guess] = []
    while len(guesses) < plan.limit:
        guesses.append(Guess(0, confidence))
        if not controller.want_more(guesses):
            break
    return len(guesses)


def live_in(world: World, rounds: int, policy: GammaPolicy | None = None) -> tuple[Controller, list[int]]:
    controller = Controller(policy or GammaPolicy(mode=Mode.LOCKSTEP))
    return controller, [live_a_round(controller, world, world.alpha).num_drafted for _ in range(rounds)]


@pytest.mark.parametrize("rtt_ms", [0.0, 30.0, 100.0, 400.0])
@pytest.mark.parametrize(
    ("alpha", "draft_ms", "base_ms"), [(0.8, 10.0, 50.0), (0.87, 24.0, 200.0), (0.6, 5.0, 50.0)]
)
def test_gamma_lands_where_a_full_search_lands(
    alpha: float, draft_ms: float, base_ms: float, rtt_ms: float
) -> None:
    world = World(alpha, draft_ms, base_ms, 0.02 * base_ms, rtt_ms)
    _, gammas = live_in(world, 300)
    steady = gammas[100:]
    cost = sum(world.tpot(gamma) for gamma in steady) / len(steady)
    assert cost <= 1.06 * world.tpot(world.best_gamma())


def test_an_unsure_drafter_stops_early_and_a_sure_one_goes_on() -> None:
    controller, _ = live_in(World(0.8, 10, 50, 1, 30), 100)
    assert drafted(controller, confidence=0.15) < drafted(controller, confidence=0.85)


def test_calibration_finds_out_a_drafter_that_is_too_sure() -> None:
    calibration = CalibratedAcceptance()
    assert calibration.chance(0.97) == pytest.approx(0.95)
    for index in range(200):
        calibration.add(0.97, accepted=index % 2 == 0)
    assert calibration.chance(0.97) == pytest.approx(0.5, abs=0.05)
    assert calibration.chance(0.42) == pytest.approx(0.45)


@given(st.floats(0, 1), st.booleans())
def test_calibrated_chances_stay_chances(probability: float, accepted: bool) -> None:
    calibration = CalibratedAcceptance()
    for _ in range(50):
        calibration.add(probability, accepted=accepted)
    assert 0.0 <= calibration.chance(probability) <= 1.0


def test_longer_round_trips_lengthen_the_draft() -> None:
    lengths = [sum(live_in(World(0.85, 10, 50, 1, rtt), 200)[1][100:]) for rtt in (0.0, 60.0, 300.0)]
    assert lengths[0] < lengths[1] < lengths[2]


@given(st.floats(0.0, 1.0), st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.floats(0.1, 1000.0))
def test_stop_rule_is_the_inequality_it_claims(
    survival: float, draft_ms: float, slope_ms: float, tpot_ms: float
) -> None:
    go = worth_drafting(survival, draft_ms, slope_ms, tpot_ms)
    assert go == (survival * tpot_ms > draft_ms + slope_ms)


def test_useless_drafts_end_in_cloud_mode_and_are_tried_again_less_and_less() -> None:
    world, controller = World(0.0, 10.0, 50.0, 1.0, 30.0), Controller(GammaPolicy())
    modes = [live_a_round(controller, world).mode for _ in range(900)]
    assert modes.count(Mode.LOCKSTEP) < 45
    assert Mode.LOCKSTEP in modes[200:]


def test_good_drafts_stay_in_lockstep_and_a_mended_link_is_found_again() -> None:
    good, bad = World(0.9, 10.0, 50.0, 1.0, 0.0), World(0.9, 10.0, 50.0, 1.0, 2000.0)
    controller = Controller(GammaPolicy())

    def live(world: World, tokens: int) -> Mode:
        while tokens > 0:
            tokens -= live_a_round(controller, world).committed
        return plan_of(controller).mode

    assert live(good, 200) is Mode.LOCKSTEP
    assert live(bad, 200) is Mode.CLOUD
    assert live(good, 1600) is Mode.LOCKSTEP


def test_perfect_drafts_measure_alpha_one_not_above() -> None:
    controller, _ = live_in(World(1.0, 10, 50, 1, 0), 200)
    assert 0.99 < controller.alpha <= 1.0


def test_fixed_gamma_and_mode_are_kept() -> None:
    controller, gammas = live_in(World(0.0, 50, 50, 1, 0), 50, GammaPolicy(gamma=7, mode=Mode.LOCKSTEP))
    assert set(gammas) == {7}
    assert controller.plan(3).limit == 3
    assert Controller(GammaPolicy(mode=Mode.CLOUD)).plan(10).mode is Mode.CLOUD


@pytest.mark.parametrize("gamma", [0, -1, 65, 10_000])
def test_senseless_gammas_are_refused_by_name(gamma: int) -> None:
    with pytest.raises(UserInputError, match="--gamma"):
        GammaPolicy(gamma)


def test_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    ratio = RatioOfSums(decay=1.0)
    ratio.add(1.0, 1.0)
    ratio.add(1.0, 9.0)
    assert ratio.value == pytest.approx(0.2)


@given(st.floats(1, 500), st.floats(0, 20), st.lists(st.integers(1, 20), min_size=2, max_size=60))
def test_verify_time_is_never_negative_and_grows(base: float, slope: float, sizes: list[int]) -> None:
    fit = VerifyTime()
    for n in sizes:
        fit.add(n, base + slope * n)
    assert fit.slope_ms >= 0
    assert fit.ms(1) <= fit.ms(20)
    mean = sum(sizes) / len(sizes)
    assert fit.ms(mean) == pytest.approx(base + slope * mean, rel=0.35, abs=12 * slope)


def test_verify_time_finds_the_line_from_varied_sizes() -> None:
    fit = VerifyTime()
    for n in [1, 5, 9, 17] * 20:
        fit.add(n, 190 + 6 * n)
    assert fit.slope_ms == pytest.approx(6, rel=0.1)
    assert fit.ms(5) == pytest.approx(220, rel=0.05)


def test_one_stall_changes_neither_mode_nor_round_trip() -> None:
    world, controller = World(0.85, 10.0, 50.0, 1.0, 20.0), Controller(GammaPolicy())
    for index in range(60):
        gamma = drafted(controller, confidence=world.alpha)
        controller.observe_draft(gamma, gamma * world.draft_ms, Mode.LOCKSTEP)
        seen = world.round(gamma)
        if index == 30:
            stalled = (seen.wait_ms or 0.0) + 3000.0
            seen = replace(seen, wait_ms=stalled, elapsed_ms=seen.elapsed_ms + 3000.0)
        controller.observe(seen)
        assert plan_of(controller).mode is Mode.LOCKSTEP
    assert controller.rtt_ms == pytest.approx(20.0)


def test_measured_slowness_counts_even_when_the_model_predicts_speed() -> None:
    # Acceptance comes in bursts, so the geometric prediction is too good; the clock knows better.
    world, controller = World(0.9, 30.0, 50.0, 1.0, 0.0), Controller(GammaPolicy())
    for _ in range(30):
        if plan_of(controller).mode is Mode.CLOUD:
            break
        gamma = drafted(controller)
        controller.observe_draft(gamma, 3 * gamma * world.draft_ms, Mode.LOCKSTEP)
        seen = world.round(gamma)
        slower = 2 * gamma * world.draft_ms + 60
        controller.observe(replace(seen, elapsed_ms=seen.elapsed_ms + slower))
    assert plan_of(controller).mode is Mode.CLOUD


def test_on_one_machine_working_at_once_does_not_make_taking_turns_look_slow() -> None:
    """There each model slows the other; lockstep is judged by what it would take by itself."""
    controller = Controller(GammaPolicy())
    world = World(0.7, 35.0, 200.0, 1.0, 1.0)
    for _ in range(60):
        plan = controller.plan(64)
        if plan.mode is Mode.LOCKSTEP:
            gamma = drafted(controller, confidence=world.alpha)
            controller.observe_draft(gamma, gamma * world.draft_ms, Mode.LOCKSTEP)
            controller.observe(world.round(gamma))
        else:
            controller.observe_draft(1, 3 * world.draft_ms, plan.mode)
            tested = [Judged(Guess(0, world.alpha), accepted=True)]
            controller.observe(Seen(plan.mode, tested, 1, 2, 400.0, 390.0, 391.0, 392.0))
    assert controller.plan(64).mode is Mode.LOCKSTEP
    predictions = controller.predictions()
    assert predictions[Mode.DUPLEX].ms > predictions[Mode.LOCKSTEP].ms
    assert predictions[Mode.CLOUD].ms == pytest.approx(201.0, rel=0.02)


def fill_until_the_next_guess(controller: Controller, *, right: bool) -> int:
    """Tokens that the cloud fills in duplex before a guess is wanted; then that guess is tested."""
    count = 0
    while not controller.want_more([]):
        controller.observe(Seen(Mode.DUPLEX, [], 0, 1, 50.0, 50.0, 50.0))
        count += 1
    tested = [Judged(Guess(0, 0.5), accepted=right)]
    controller.observe_draft(1, 30.0, Mode.DUPLEX)
    controller.observe(Seen(Mode.DUPLEX, tested, 1, 1 + right, 50.0, 51.0, 51.0, 80.0))
    return count


def test_in_duplex_useless_drafts_end_drafting_and_are_tried_less_and_less() -> None:
    controller = Controller(GammaPolicy(mode=Mode.DUPLEX))
    for _ in range(80):
        fill_until_the_next_guess(controller, right=False)
    waits = [fill_until_the_next_guess(controller, right=False) for _ in range(5)]
    assert waits == [128] * 5


def test_in_duplex_a_drafter_that_became_good_drafts_again() -> None:
    controller = Controller(GammaPolicy(mode=Mode.DUPLEX))
    for _ in range(80):
        fill_until_the_next_guess(controller, right=False)
    for _ in range(30):
        fill_until_the_next_guess(controller, right=True)
    assert fill_until_the_next_guess(controller, right=True) == 0


def test_cost_waits_for_drafts_where_latency_fills() -> None:
    for prefer, mode in ((Prefer.COST, Mode.LOCKSTEP), (Prefer.LATENCY, Mode.DUPLEX)):
        assert Controller(GammaPolicy(prefer=prefer)).plan(100).mode is mode


@pytest.mark.parametrize("prefer", list(Prefer))
@pytest.mark.parametrize("mode", [None, *Mode])
def test_every_controller_explains_itself_from_the_first_verdict_on(
    mode: Mode | None, prefer: Prefer
) -> None:
    controller = Controller(GammaPolicy(mode=mode, prefer=prefer))
    assert controller.explain(controller.plan(10)).predicted_ms == {}
    controller.observe(World(0.8, 10, 50, 1, 30).fill())
    shown = controller.explain(controller.plan(10))
    assert set(shown.as_json()["predicted_ms"]) == {one.value for one in Mode}
    assert shown.mode.value in shown.as_line()


@pytest.mark.parametrize("remembered", [True, False])
def test_a_cloud_that_became_faster_is_noticed_in_the_other_kind_of_modes(remembered: bool) -> None:
    """Figures of modes not in use go out of date: remembered ones at once, others after a while."""
    before = Controller(GammaPolicy(mode=Mode.LOCKSTEP))
    slow, fast = World(0.8, 30.0, 200.0, 1.0, 30.0), World(0.8, 30.0, 20.0, 0.0, 30.0)
    for _ in range(60):
        before.observe_draft(4, 120.0, Mode.LOCKSTEP)
        before.observe(replace(slow.round(4), queue_ms=200.0))
    controller = Controller(GammaPolicy()) if remembered else before
    if remembered:
        controller.restore(before.state())
    for _ in range(10 if remembered else 100):
        controller.observe(replace(fast.fill(), mode=Mode.DUPLEX))
    assert controller.predictions()[Mode.CLOUD].ms == pytest.approx(20.0, rel=0.1)


def test_what_is_remembered_of_taking_turns_outlives_working_at_once_on_one_machine() -> None:
    before = Controller(GammaPolicy(mode=Mode.LOCKSTEP))
    apart, at_once = World(0.6, 36.0, 200.0, 1.0, 1.0), World(0.6, 85.0, 300.0, 2.0, 1.0)
    for _ in range(60):
        before.observe_draft(2, 72.0, Mode.LOCKSTEP)
        before.observe(apart.round(2))
    controller = Controller(GammaPolicy())
    controller.restore(before.state())
    expected = {mode: cost.ms for mode, cost in controller.predictions().items()}
    for _ in range(10):
        controller.observe_draft(1, 85.0, Mode.DUPLEX)
        controller.observe(replace(at_once.round(1), mode=Mode.DUPLEX))
    found = controller.predictions()
    assert found[Mode.CLOUD].ms == pytest.approx(expected[Mode.CLOUD])
    assert found[Mode.LOCKSTEP].ms == pytest.approx(expected[Mode.LOCKSTEP], rel=0.25)


def test_a_guess_counts_for_the_mode_it_was_begun_in() -> None:
    controller = Controller(GammaPolicy(mode=Mode.LOCKSTEP))
    controller.observe(World(0.8, 30.0, 200.0, 1.0, 1.0).round(4))
    controller.observe_draft(4, 120.0, Mode.LOCKSTEP)
    controller.observe_draft(1, 500.0, Mode.DUPLEX)  # finished after the switch
    assert controller.draft_ms == pytest.approx(30.0)


def test_a_busy_cloud_makes_rounds_longer_and_pays_for_longer_drafts() -> None:
    """A wait for others' passes is paid once a round, like R."""
    quiet, busy = (Controller(GammaPolicy(mode=Mode.LOCKSTEP)) for _ in range(2))
    world = World(0.9, 10.0, 50.0, 1.0, 5.0)
    for _ in range(60):
        seen = world.round(4)
        for controller, queue_ms in ((quiet, 0.0), (busy, 200.0)):
            controller.observe_draft(4, 40.0, Mode.LOCKSTEP)
            waits = replace(
                seen,
                elapsed_ms=seen.elapsed_ms + queue_ms,
                server_ms=seen.server_ms + queue_ms,
                wait_ms=(seen.wait_ms or 0.0) + queue_ms,
                queue_ms=queue_ms,
            )
            controller.observe(waits)
    assert busy.rtt_ms == pytest.approx(quiet.rtt_ms)
    slower = busy.predictions()[Mode.CLOUD].ms - quiet.predictions()[Mode.CLOUD].ms
    assert slower == pytest.approx(200.0)
    assert busy.predictions()[Mode.LOCKSTEP].passes < quiet.predictions()[Mode.LOCKSTEP].passes
    missed = busy.predictions()[Mode.PIPELINED].ms - quiet.predictions()[Mode.PIPELINED].ms
    assert missed == pytest.approx((1.0 - busy.alpha) * 200.0)
    assert busy.explain(busy.plan(64)).queue_ms == pytest.approx(200.0)


@pytest.mark.parametrize("mode", [Mode.PIPELINED, Mode.DUPLEX])
def test_a_busy_cloud_is_noticed_while_both_work_at_once(mode: Mode) -> None:
    controller = Controller(GammaPolicy(mode=mode))
    for queue_ms in (0.0, 100.0):
        for _ in range(80):
            controller.observe_draft(1, 10.0, mode)
            seen = World(0.9, 10.0, 50.0, 1.0, 5.0).round(1)
            controller.observe(replace(seen, mode=mode, queue_ms=queue_ms))
        cost = controller.predictions()[Mode.PIPELINED].ms
        expected = 10.0 + (1.0 - controller.alpha) * (5.0 + 52.0 + queue_ms)
        assert cost == pytest.approx(expected, rel=0.02)


def test_explanations_say_what_was_left_out_and_nothing_before_the_first_figure() -> None:
    controller = Controller(GammaPolicy())
    assert "predicted" not in controller.explain(controller.plan(10)).as_line()
    # Both ends on one machine: taking turns was measured another time, and looks cheaper.
    before, apart = Controller(GammaPolicy(mode=Mode.LOCKSTEP)), World(0.7, 20.0, 200.0, 1.0, 30.0)
    for _ in range(60):
        before.observe_draft(2, 40.0, Mode.LOCKSTEP)
        before.observe(apart.round(2))
    controller.restore(before.state())
    for _ in range(20):
        plan = controller.plan(10)
        controller.observe_draft(1, 85.0, Mode.DUPLEX)
        controller.observe(replace(World(0.7, 85.0, 180.0, 1.0, 30.0).round(1), mode=plan.mode))
    reason = controller.explain(controller.plan(10)).reason
    assert reason == "no other is 5% cheaper, lockstep left out for waiting on the link"


def test_jitter_is_the_median_distance_from_the_round_trip() -> None:
    link = LinkEstimate()
    assert link.jitter_ms == 0.0
    for ms in (30.0, 32.0, 29.0, 900.0, 30.0):
        link.add(ms)
    assert (link.rtt_ms, link.jitter_ms) == (30.0, 1.0)


def test_one_slow_pass_never_makes_a_time_negative() -> None:
    fit = VerifyTime()
    for _ in range(30):
        fit.add(5, 50.0)
    fit.add(9, 1000.0)
    assert all(fit.ms(n) >= 0.0 for n in range(1, 65))


def test_time_without_evidence_makes_nobody_forget() -> None:
    controller = Controller(GammaPolicy(mode=Mode.DUPLEX))
    guess = Guess(0, 0.5)
    for index in range(200):
        controller.observe_late([Judged(guess, accepted=index % 4 == 0)])
    before = controller.alpha
    for _ in range(128):
        controller.observe(Seen(Mode.DUPLEX, [], 0, 1, 50.0, 50.0, 50.0))
    assert controller.alpha == before
    controller.observe_late([Judged(guess, accepted=True)])
    assert controller.alpha < 0.4


@pytest.mark.parametrize("allowed", [tuple(Mode), WAITING])
def test_a_drafter_with_nothing_to_say_is_not_waited_for(allowed: tuple[Mode, ...]) -> None:
    controller = Controller(GammaPolicy(prefer=Prefer.COST))
    modes = []
    for _ in range(12):
        modes.append(controller.plan(100, allowed).mode)
        controller.observe(Seen(modes[-1], [], 0, 1, 450.0, 50.0, 50.0, 450.0))
    assert modes[0] is Mode.LOCKSTEP
    assert modes[-1].fills


def test_long_links_are_never_waited_on_where_time_is_all_that_counts() -> None:
    controller = Controller(GammaPolicy())
    controller.observe_draft(1, 20.0, Mode.DUPLEX)
    for _ in range(600):
        assert controller.plan(100).mode.fills
        controller.observe(Seen(controller.mode, [], 0, 1, 25.0, 25.0, 25.0))
        controller.observe_round_trip(400.0)


def test_a_fixed_mode_gives_way_where_it_is_not_possible() -> None:
    assert Controller(GammaPolicy(mode=Mode.DUPLEX)).plan(10, WAITING).mode in WAITING
