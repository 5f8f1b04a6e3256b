"""Chooses gamma and the mode before each round, from what earlier rounds showed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_edge.controller.estimators import CalibratedAcceptance, RatioOfSums, RecentMedian, VerifyTime
from draftwire_edge.controller.stop_rule import lockstep_tpot_ms, worth_drafting
from draftwire_edge.drafter import Guess
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Mode

#: γ of the first round, before anything is known.
FIRST_GAMMA = 4
#: Most γ may grow from one round to the next (it ran away in systems that let it).
MAX_GAMMA_STEP = 2
#: A mode must be this much cheaper before it replaces the present one.
HYSTERESIS = 0.05
#: Rounds before the measured time per token is trusted beside the predicted one.
MEASURED_ROUNDS = 8
#: Empty blocks in a row after which the drafter counts as having nothing to say.
MAX_EMPTY_ROUNDS = 3
#: A single wait longer than this many round trips is a stall, not the link.
STALL_ROUND_TRIPS = 4.0
#: Rounds of lockstep before the cloud alone may be chosen: one bad block is no evidence.
MIN_ROUNDS = 3
#: Tokens streamed by the cloud alone before lockstep is tried again; doubles after each failed try.
FIRST_REPROBE_TOKENS = 24
MAX_REPROBE_TOKENS = 384


@dataclass(frozen=True, slots=True)
class GammaPolicy:
    """What the user said about gamma and mode.

    Raises:
        UserInputError: gamma below 1 or too large.
    """

    #: Fixed γ, or None for the stop rule.
    gamma: int | None = None
    #: Fixed mode, or None to choose the cheaper one.
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if self.gamma is None:
            return
        if self.gamma < 1:
            fix = "Use at least 1, or --mode cloud to stream without drafting"
            raise UserInputError("--gamma", f"{self.gamma} is less than 1", fix)
        if self.gamma > MAX_DRAFT_TOKENS:
            raise UserInputError(
                "--gamma", f"{self.gamma} is more than {MAX_DRAFT_TOKENS}", "Use fewer, or auto"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in the next round."""

    mode: Mode
    #: Most tokens to draft; the stop rule may end the block earlier.
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """What one lockstep round showed. Times in ms."""

    #: The block, and how many of its tokens were accepted.
    guesses: Sequence[Guess]
    accepted: int
    #: Tokens committed.
    committed: int
    #: Drafting, model and choosing.
    draft_ms: float
    #: From sending the block to having its verdict.
    wait_ms: float
    #: All time in the cloud, and the forward pass alone.
    server_ms: float
    forward_ms: float

    @property
    def drafted(self) -> int:
        """Tokens drafted."""
        return len(self.guesses)


class Controller:
    """The first form of the latency compensation: measured R, c_d, t_v and acceptance, one stop rule.

    One instance may follow many generations over the same link and models; it keeps what it learnt.

    Args:
        policy: what the user fixed.
    """

    def __init__(self, policy: GammaPolicy) -> None:
        self._policy = policy
        self._alpha = RatioOfSums(decay=0.95, prior=0.8, prior_weight=6.0)
        self._calibration = CalibratedAcceptance()
        self._draft_ms = RatioOfSums(decay=0.9)
        self._verify = VerifyTime()
        self._forget_link()
        self._last_gamma = FIRST_GAMMA - MAX_GAMMA_STEP
        self._mode = policy.mode or Mode.LOCKSTEP
        self._streamed = 0
        self._reprobe_after = FIRST_REPROBE_TOKENS

    @property
    def alpha(self) -> float:
        """α, chance that one drafted token is accepted."""
        return self._alpha.value

    @property
    def rtt_ms(self) -> float:
        """R, round-trip time without server work."""
        return self._rtt_ms.value

    @property
    def draft_ms(self) -> float:
        """c_d, time to draft one token."""
        return self._draft_ms.value

    def verify_ms(self, n: int) -> float:
        """t_v(n), time of a forward pass over n tokens."""
        return self._verify.ms(n)

    def plan(self, room: int) -> Plan:
        """The next round.

        Args:
            room: most tokens worth drafting, i.e. output tokens left minus one.
        """
        if self._mode is Mode.CLOUD:
            return Plan(Mode.CLOUD)
        return Plan(Mode.LOCKSTEP, max(0, min(room, self._limit())))

    def _limit(self) -> int:
        if self._policy.gamma is not None:
            return self._policy.gamma
        return min(MAX_DRAFT_TOKENS, self._last_gamma + MAX_GAMMA_STEP)

    def want_more(self, guesses: Sequence[Guess]) -> bool:
        """The stop rule: is a token after these worth drafting?"""
        if self._policy.gamma is not None or self._rounds == 0:
            return True
        # The next token is not drawn yet, so nothing is known of it but the average.
        survival = self.alpha * math.prod(self._calibration.chance(one.top_probability) for one in guesses)
        return worth_drafting(survival, self.draft_ms, self._verify.slope_ms, self._tpot_ms.value)

    def _forget_link(self) -> None:
        """Start measuring the link anew: figures from before a pause say nothing of it now."""
        self._rtt_ms = RecentMedian()
        self._tpot_ms = RatioOfSums(decay=0.9)
        self._rounds = self._empty_rounds = 0

    def observe_round(self, seen: Round) -> None:
        """Learn from a lockstep round."""
        self._rounds += 1
        tested = min(seen.accepted + 1, seen.drafted)
        self._alpha.add(seen.accepted, tested)
        for index, guess in enumerate(seen.guesses[:tested]):
            self._calibration.add(guess.top_probability, accepted=index < seen.accepted)
        self._rtt_ms.add(max(0.0, seen.wait_ms - seen.server_ms))
        self._verify.add(seen.drafted + 1, seen.forward_ms)
        self._tpot_ms.add(seen.draft_ms + self._without_stall(seen), seen.committed)
        self._empty_rounds = 0 if seen.drafted else self._empty_rounds + 1
        if seen.drafted:
            self._draft_ms.add(seen.draft_ms, seen.drafted)
            self._last_gamma = seen.drafted
        if self._policy.mode is None and self._rounds >= MIN_ROUNDS:
            self._leave_lockstep_if_slower()

    def _without_stall(self, seen: Round) -> float:
        """The wait, cut where it tells of one stall; a lasting change of the link moves the median."""
        longest = seen.server_ms + STALL_ROUND_TRIPS * max(self.rtt_ms, 10.0)
        return min(seen.wait_ms, longest)

    def observe_fill(self, forward_ms: float) -> None:
        """Learn from one token that the cloud decoded by itself."""
        self._verify.add(1, forward_ms)
        if self._mode is not Mode.CLOUD:
            return  # still in flight when lockstep was asked for
        self._streamed += 1
        if self._policy.mode is None and self._streamed >= self._reprobe_after:
            self._mode = Mode.LOCKSTEP
            self._streamed = 0
            self._forget_link()
            self._reprobe_after = min(2 * self._reprobe_after, MAX_REPROBE_TOKENS)

    def predicted_lockstep_ms(self) -> float:
        """Time per token of lockstep at its best γ."""
        gammas = range(1, MAX_DRAFT_TOKENS + 1) if self._policy.gamma is None else (self._policy.gamma,)
        return min(
            lockstep_tpot_ms(gamma, self.alpha, self.draft_ms, self.rtt_ms, self._verify.ms(gamma + 1))
            for gamma in gammas
        )

    def _leave_lockstep_if_slower(self) -> None:
        cost = self.predicted_lockstep_ms()
        if self._rounds >= MEASURED_ROUNDS:
            cost = max(cost, self._tpot_ms.value)
        slower = cost > (1.0 + HYSTERESIS) * self._verify.ms(1)
        if slower or self._empty_rounds >= MAX_EMPTY_ROUNDS:
            self._mode = Mode.CLOUD
        else:
            self._reprobe_after = FIRST_REPROBE_TOKENS
