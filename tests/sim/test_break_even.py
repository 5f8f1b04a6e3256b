"""At the break-even round trip both ways take the same time, and one millisecond beyond it drafting loses."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftwire_edge.controller.formulas import lockstep_tpot_ms, overtaking_chance, pipelined_tpot_ms
from draftwire_sim.break_even import (
    MOST,
    lockstep_break_even_ms,
    overtaking_limit_ms,
    pipelined_break_even_ms,
)

ALPHA, TIME = st.floats(0.05, 0.97), st.floats(1.0, 300.0)


@given(ALPHA, TIME, TIME, st.floats(0.0, 10.0))
def test_limits_are_where_the_controllers_formulas_say(
    alpha: float, draft_ms: float, alone_ms: float, slope_ms: float
) -> None:
    limit = lockstep_break_even_ms(alpha, draft_ms, alone_ms, slope_ms)
    best = min(
        lockstep_tpot_ms(gamma, alpha, draft_ms, limit, alone_ms + gamma * slope_ms)
        for gamma in range(1, MOST + 1)
    )
    assert best == pytest.approx(alone_ms, rel=1e-9, abs=1e-9)
    limit = pipelined_break_even_ms(alpha, draft_ms, alone_ms, slope_ms)
    assert pipelined_tpot_ms(alpha, draft_ms, limit, alone_ms + slope_ms) == pytest.approx(alone_ms)
    assume(draft_ms < 0.95 * alone_ms)
    limit = overtaking_limit_ms(alpha, draft_ms, alone_ms)
    assert overtaking_chance(alpha, draft_ms, limit, alone_ms) == pytest.approx(0.5)


def test_the_published_break_even_of_lockstep() -> None:
    # Prop. 2 of arXiv 2606.25091 with γ = 5 there; the best γ here allows no shorter a round trip.
    for alpha, published in ((0.7, 47), (0.85, 108), (0.9, 134)):
        assert lockstep_break_even_ms(alpha, 10.0, 50.0, 0.0) >= published - 1
