"""The formulas of the controller, one a function. Times in ms."""

from __future__ import annotations

from draftwire_protocol.acceptance import expected_tokens


def worth_drafting(survival: float, draft_ms: float, slope_ms: float, tpot_ms: float) -> bool:
    """Whether one more drafted token shortens the time per token.

    Go on while P(prefix survives the next token) > (c_d + b) / TPOT*, the derivative of
    (γ·c_d + R + t_v(γ+1)) / E(γ) by Dinkelbach's argument. A longer round trip raises TPOT*, lowers
    the bar and lengthens the draft.

    Args:
        survival: chance that all tokens drafted so far and the next one are accepted.
        draft_ms: c_d, time to draft one token.
        slope_ms: b, time to verify one more token.
        tpot_ms: TPOT*, running average time per committed token.
    """
    return survival * tpot_ms > draft_ms + slope_ms


def survival_bar(draft_ms: float, slope_ms: float, tpot_ms: float) -> float:
    """(c_d + b) / TPOT*: the survival at which ``worth_drafting`` turns; 0 while TPOT* is unknown.

    Args:
        draft_ms: c_d.
        slope_ms: b.
        tpot_ms: TPOT*.
    """
    return (draft_ms + slope_ms) / tpot_ms if tpot_ms else 0.0


def lockstep_tpot_ms(gamma: int, alpha: float, draft_ms: float, rtt_ms: float, verify_ms: float) -> float:
    """(γ·c_d + R + t_v(γ+1)) / E(γ): time per token of lockstep (DESIGN 5; Leviathan 2023, eq. 1).

    Args:
        gamma: γ, drafted tokens a round.
        alpha: α, chance that one drafted token is accepted.
        draft_ms: c_d.
        rtt_ms: R.
        verify_ms: t_v(γ+1), and the wait before it.
    """
    return (gamma * draft_ms + rtt_ms + verify_ms) / expected_tokens(alpha, gamma)


def pipelined_tpot_ms(alpha: float, draft_ms: float, rtt_ms: float, verify_ms: float) -> float:
    """c_d + (1 - α)(R + t_v): time per token when R is paid once a miss.

    A run of accepted tokens is 1 / (1 - α) long; its tokens come as fast as they are drafted, and the
    miss that ends it costs a round trip and a pass. The event model of draftwire_sim lies within 10 %
    of it at the settings of its tests.

    Args:
        alpha: α, chance that one drafted token is accepted.
        draft_ms: c_d.
        rtt_ms: R.
        verify_ms: t_v of a pass, and the wait before it.
    """
    return draft_ms + (1.0 - alpha) * (rtt_ms + verify_ms)


def overtaking_chance(alpha: float, draft_ms: float, rtt_ms: float, alone_ms: float) -> float:
    """α^k, k = (R + c_d) / (t_v(1) - c_d): chance that a new branch gets ahead of a cloud that fills.

    The k-th draft of a branch arrives R + k·c_d after the text it starts from was committed; by then the
    cloud has gone on for as long, one token in t_v(1). All drafts until they meet must be right. 0 where
    the drafter is no faster than the cloud.

    Args:
        alpha: α, chance that one drafted token is accepted.
        draft_ms: c_d.
        rtt_ms: R.
        alone_ms: t_v(1).
    """
    if draft_ms >= alone_ms:
        return 0.0
    return float(alpha ** ((rtt_ms + draft_ms) / (alone_ms - draft_ms)))


def duplex_tpot_ms(pipelined_ms: float, alone_ms: float) -> float:
    """The smaller of pipelined and the cloud alone: an upper bound, since duplex is either of them at times.

    Args:
        pipelined_ms: time per token of pipelined.
        alone_ms: t_v(1), time per token of the cloud alone.
    """
    return min(pipelined_ms, alone_ms)
