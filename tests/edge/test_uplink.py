"""The uplink's rate: found where there is a limit, unknown where nothing tells of one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_edge.branch import Judged
from draftwire_edge.controller import Controller, GammaPolicy, Seen
from draftwire_edge.controller.link import LinkEstimate
from draftwire_edge.controller.uplink import LEAST_CHANGES, UplinkRate
from draftwire_edge.drafter import Guess
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.delay_line import Bottleneck, DelayLine
from draftwire_protocol.messages import Mode

#: HTTP/2 and gRPC around each message; the estimator sees the payload only.
FRAMES = 23
SIZES = st.lists(st.integers(8, 400), min_size=30, max_size=60)


class EmulatedLink:
    """Rounds over the emulator's own arithmetic, with no clock."""

    def __init__(self, conditions: Conditions, seed: int = 1) -> None:
        self.conditions = conditions
        self._up = DelayLine(Bottleneck(), Random(seed))
        self._down = DelayLine(Bottleneck(), Random(seed + 1))
        self._now_s = 0.0

    def round_ms(self, num_bytes: int) -> float:
        """From sending a message to having a short answer, the cloud taking no time."""
        there_s = self._up.schedule(self._now_s, num_bytes + FRAMES, self.conditions)[-1].release_s
        back_s = self._down.schedule(there_s, 20 + FRAMES, self.conditions)[-1].release_s
        ms = 1e3 * (back_s - self._now_s)
        self._now_s = back_s + 1.0
        return ms


def draft_bytes(gamma: int) -> int:
    return 10 + 3 * gamma


def rate_of(link: EmulatedLink, rounds: int = 80) -> float | None:
    random, uplink = Random(5), UplinkRate()
    for _ in range(rounds):
        size = draft_bytes(random.randint(1, 16))
        uplink.add(size, link.round_ms(size))
    return uplink.bytes_per_s


@pytest.mark.parametrize("rate_kbit", [8.0, 16.0, 64.0, 256.0])
@pytest.mark.parametrize("rtt_ms", [0.0, 30.0, 400.0])
def test_it_finds_the_rate_of_the_emulated_link(rate_kbit: float, rtt_ms: float) -> None:
    found = rate_of(EmulatedLink(Conditions(rtt_ms, rate_kbit=rate_kbit)))
    assert found == pytest.approx(125.0 * rate_kbit, rel=0.25)


def test_it_finds_a_narrow_rate_under_jitter() -> None:
    found = rate_of(EmulatedLink(Conditions(60, jitter_ms=2, rate_kbit=64)), rounds=200)
    assert found == pytest.approx(8000.0, rel=0.25)


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(),
        Conditions(30),
        Conditions(30, jitter_ms=20),
        Conditions(30, loss=0.05),
        Conditions(30, 0, 1e6),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(5))
def test_a_link_without_a_limit_has_no_rate(conditions: Conditions, seed: int) -> None:
    assert rate_of(EmulatedLink(conditions, seed)) is None


@given(SIZES, st.floats(0, 500), st.floats(100.0, 1e4))
def test_rounds_on_a_line_give_their_rate(sizes: list[int], rtt_ms: float, bytes_per_s: float) -> None:
    uplink = UplinkRate()
    for size in sizes:
        uplink.add(size, rtt_ms + 1e3 * size / bytes_per_s)
    if uplink.bytes_per_s is not None:
        assert uplink.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-3)
    if len(set(sizes)) > 15:
        assert uplink.bytes_per_s is not None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), max_size=60))
def test_no_rounds_give_a_negative_rate(rounds: list[tuple[int, float]]) -> None:
    uplink = UplinkRate()
    for size, ms in rounds:
        uplink.add(size, ms)
        assert uplink.ms_per_byte >= 0.0


@given(st.integers(0, 10**6), st.lists(st.floats(0, 1e6), max_size=60))
def test_messages_of_one_size_say_nothing(size: int, times_ms: list[float]) -> None:
    uplink = UplinkRate()
    for ms in times_ms:
        uplink.add(size, ms)
    assert uplink.bytes_per_s is None


def test_a_few_rounds_say_nothing() -> None:
    uplink = UplinkRate()
    for index in range(int(LEAST_CHANGES)):
        uplink.add(20 + 100 * (index % 2), 30.0 + 100 * (index % 2))
        assert uplink.bytes_per_s is None


def test_a_round_trip_that_changes_is_no_rate_and_one_that_drifts_hides_none() -> None:
    random, jumping, drifting = Random(3), UplinkRate(), UplinkRate()
    for index in range(120):
        size = draft_bytes(random.randint(1, 16))
        jumping.add(size, 10.0 if index % 40 < 20 else 300.0)
        drifting.add(size, 10.0 + index + size / 8.0)
    assert jumping.bytes_per_s is None
    assert drifting.bytes_per_s == pytest.approx(8000.0, rel=0.25)


def taught(conditions: Conditions) -> Controller:
    """A controller of lockstep after rounds of several sizes over a link."""
    controller, link, random = (
        Controller(GammaPolicy(mode=Mode.LOCKSTEP)),
        EmulatedLink(conditions),
        Random(2),
    )
    for _ in range(80):
        gamma = random.randint(1, 16)
        trip_ms, forward_ms = link.round_ms(draft_bytes(gamma)), 50.0 + gamma
        tested = [Judged(Guess(0, 0.85), accepted=random.random() < 0.85)]
        controller.observe_draft(gamma, 10.0 * gamma, Mode.LOCKSTEP)
        controller.observe(
            Seen(
                Mode.LOCKSTEP, tested, gamma, 4, 10.0 * gamma + trip_ms + forward_ms, forward_ms, forward_ms,
                trip_ms + forward_ms, sent_bytes=draft_bytes(gamma),
            )
        )  # fmt: skip
    return controller


def test_the_controller_reckons_with_the_way_up_of_a_draft() -> None:
    narrow, wide = taught(Conditions(100, rate_kbit=8)), taught(Conditions(100))
    # What is constant, headers both ways, is part of R.
    assert narrow.rtt_ms == pytest.approx(100.0 + (2 * FRAMES + 20) / 1.0, rel=0.05)
    shown = narrow.explain(narrow.plan(64))
    assert shown.uplink_bytes_per_s == pytest.approx(1000.0, rel=0.05)
    assert "up 1.0 kB/s" in shown.as_line()
    # c_d, b, and the three bytes of one more token.
    assert shown.bar * shown.tpot_ms == pytest.approx(10.0 + shown.verify_b_ms + 3.0, rel=0.05)
    assert narrow.predictions()[Mode.LOCKSTEP].ms > wide.predictions()[Mode.LOCKSTEP].ms
    assert wide.explain(wide.plan(64)).uplink_bytes_per_s is None
    assert "kB/s" not in wide.explain(wide.plan(64)).as_line()


def test_a_round_is_as_long_as_its_bytes_make_it() -> None:
    link, emulated, random = LinkEstimate(), EmulatedLink(Conditions(40, rate_kbit=16)), Random(4)
    for _ in range(60):
        gamma = random.randint(1, 16)
        link.add(emulated.round_ms(draft_bytes(gamma)), draft_bytes(gamma))
        link.add_size(gamma, draft_bytes(gamma))
    for gamma in (1, 5, 16):
        assert link.round_ms(gamma) == pytest.approx(emulated.round_ms(draft_bytes(gamma)), rel=0.05)
    assert link.token_ms == pytest.approx(3 / 2.0, rel=0.1)
