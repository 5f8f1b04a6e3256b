"""Chooses gamma and the mode before each verdict, from what earlier ones showed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwire_edge.branch import Judged
from draftwire_edge.controller.estimators import RatioOfSums
from draftwire_edge.controller.explanation import Explanation
from draftwire_edge.controller.formulas import (
    duplex_tpot_ms,
    lockstep_tpot_ms,
    overtaking_chance,
    pipelined_tpot_ms,
    survival_bar,
    worth_drafting,
)
from draftwire_edge.controller.link import LinkEstimate
from draftwire_edge.controller.modes import LEAST_MS, Cost, ModeChoice
from draftwire_edge.controller.pace import Paces
from draftwire_edge.controller.policy import GammaPolicy, Plan, Prefer
from draftwire_edge.controller.survival import Survival
from draftwire_edge.drafter import Guess
from draftwire_protocol.acceptance import expected_tokens
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, Mode

#: γ before anything is known.
FIRST_GAMMA = 4
#: Most γ may grow from one round to the next (it ran away in systems that let it).
MAX_GAMMA_STEP = 2
#: Empty blocks in a row after which the drafter counts as having nothing to say.
MAX_EMPTY_ROUNDS = 3
#: A single wait longer than this many round trips is a stall, not the link.
STALL_ROUND_TRIPS = 4.0
#: Tokens without a verified guess after which one is made to see whether drafting pays again; doubles.
FIRST_PROBE_TOKENS = 16
MAX_PROBE_TOKENS = 128
#: A branch that gets ahead of a filling cloud more rarely than this is not begun.
LEAST_OVERTAKING = 0.02
#: What evidence from another time counts.
OLD_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What one verdict showed. Times in ms."""

    mode: Mode
    #: Guesses that the text has reached.
    tested: Sequence[Judged]
    #: Drafted tokens that the forward pass judged.
    num_drafted: int
    #: Tokens committed.
    committed: int
    #: Since the verdict before, or since its tokens were taken from us if that was later.
    elapsed_ms: float
    #: The forward pass, and all time in the cloud.
    forward_ms: float
    server_ms: float
    #: From sending the last draft that was judged to having the verdict; None where there was none.
    wait_ms: float | None = None
    #: Of the time in the cloud, the wait before the forward pass.
    queue_ms: float = 0.0
    #: Payload of the message with that last draft.
    sent_bytes: int = 0
    #: What the cloud can verify at once in lockstep, beside others; 0 for any number.
    gamma_budget: int = 0
    #: The cloud put off a token of its own because others waited.
    fill_refused: bool = False


class Controller:
    """The latency compensation: measured R, c_d, t_v and survival, one stop rule, one choice of mode.

    One instance may follow many generations over the same link and models; it keeps what it learnt.

    Args:
        policy: what the user fixed.
    """

    def __init__(self, policy: GammaPolicy) -> None:
        self._policy = policy
        self._survival = Survival()
        self._paces = Paces()
        self._link = LinkEstimate()
        first = Mode.LOCKSTEP if policy.prefer is Prefer.COST else Mode.DUPLEX
        self._modes = ModeChoice(policy.mode or first, policy.prefer.pass_weight)
        #: Share of verdicts in a filling mode before which a fill was put off.
        self._refused = RatioOfSums(decay=0.9, prior=0.0, prior_weight=2.0)
        self._verdicts = self._empty_rounds = 0
        self._budget = MAX_DRAFT_TOKENS
        self._last_gamma = FIRST_GAMMA - MAX_GAMMA_STEP
        self._untested_tokens, self._probe_after = 0, FIRST_PROBE_TOKENS

    @property
    def mode(self) -> Mode:
        """The mode in use."""
        return self._policy.mode or self._modes.current

    @property
    def alpha(self) -> float:
        """α, chance that one drafted token is accepted."""
        return self._survival.alpha

    @property
    def rtt_ms(self) -> float:
        """R, round-trip time of a message of no bytes, without server work."""
        return self._link.rtt_ms

    @property
    def draft_ms(self) -> float:
        """c_d, time to draft one token."""
        return self._paces.draft_ms(self.mode)

    @property
    def tpot_ms(self) -> float:
        """TPOT*, running average time per token in this mode."""
        return self._modes.tpot_ms(self.mode)

    def verify_ms(self, n: int) -> float:
        """t_v(n), time of a forward pass over n tokens."""
        return self._paces.verify(self.mode).ms(n)

    def plan(self, room: int, allowed: Collection[Mode] = tuple(Mode)) -> Plan:
        """How to go on.

        Args:
            room: most tokens worth drafting, i.e. output tokens left minus one.
            allowed: modes that both ends and the scheme support.
        """
        fixed = self._policy.mode
        mode = self._choose(allowed) if fixed is None or fixed not in allowed else fixed
        if mode is Mode.CLOUD:
            return Plan(Mode.CLOUD)
        return Plan(mode, max(0, min(room, self._limit(mode))))

    def _choose(self, allowed: Collection[Mode]) -> Mode:
        if self._modes.current not in allowed:
            self._modes.current = Mode.LOCKSTEP if Mode.LOCKSTEP in allowed else Mode.CLOUD
        if self._empty_rounds >= MAX_EMPTY_ROUNDS and (filling := [one for one in allowed if one.fills]):
            # The drafter has nothing to say: do not wait for it.
            allowed = filling
            if self._modes.current not in allowed:
                self._modes.current = Mode.DUPLEX if Mode.DUPLEX in allowed else Mode.CLOUD
        if not self._paces.known():
            return self._modes.current  # no idea yet what drafting costs
        return self._modes.choose(
            self.predictions(),
            self.rtt_ms,
            allowed,
            may_share=self._link.may_be_none or self._paces.contended,
            alone_known=self._paces.apart_known,
        )

    def predictions(self) -> dict[Mode, Cost]:
        """What a token costs in each mode, by the formulas, with the present estimates."""
        alone = max(self._paces.verify(Mode.CLOUD).ms(1) + self._paces.queue_ms(Mode.CLOUD), LEAST_MS)
        gamma, lockstep = self._best_lockstep()
        draft_ms, verify = self._paces.draft_ms(Mode.PIPELINED), self._paces.verify(Mode.PIPELINED)
        answered_ms = self._paces.miss_queue_ms + verify.ms(2)
        pipelined = pipelined_tpot_ms(self.alpha, draft_ms, self._link.round_ms(1), answered_ms)
        filled = 1.0 - self._refused.value
        duplex = filled * duplex_tpot_ms(pipelined, alone) + (1.0 - filled) * pipelined
        return {
            Mode.CLOUD: Cost(alone, 1.0),
            Mode.LOCKSTEP: Cost(lockstep, 1.0 / expected_tokens(self.alpha, gamma)),
            # A pass lasts as long as some tokens take to draft, and judges those that arrived meanwhile.
            Mode.PIPELINED: Cost(pipelined, min(1.0, pipelined / alone)),
            Mode.DUPLEX: Cost(duplex, min(1.0, duplex / alone)),
        }

    def _best_lockstep(self) -> tuple[int, float]:
        """The best γ of lockstep, and its time per token."""
        fixed = self._policy.gamma
        draft_ms, verify = self._paces.draft_ms(Mode.LOCKSTEP), self._paces.verify(Mode.LOCKSTEP)
        queue_ms = self._paces.queue_ms(Mode.LOCKSTEP)

        def cost_ms(gamma: int) -> float:
            passed_ms = queue_ms + verify.ms(gamma + 1)
            return lockstep_tpot_ms(gamma, self.alpha, draft_ms, self._link.round_ms(gamma), passed_ms)

        costs = {gamma: cost_ms(gamma) for gamma in ((fixed,) if fixed else range(1, self._budget + 1))}
        best = min(costs, key=lambda gamma: costs[gamma])
        return best, costs[best]

    def _limit(self, mode: Mode) -> int:
        if self._policy.gamma is not None:
            return self._policy.gamma
        if mode.drafts_on:
            return MAX_DRAFT_TOKENS if self._verdicts else FIRST_GAMMA
        return min(self._budget, self._last_gamma + MAX_GAMMA_STEP)

    def want_more(self, guesses: Sequence[Guess]) -> bool:
        """The stop rule: is a token after these, drafted and not verified, worth drafting?"""
        if self._policy.gamma is not None or self.tpot_ms == 0.0:
            return True
        mode = self.mode
        if not guesses and (mode is Mode.LOCKSTEP or self._untested_tokens >= self._probe_after):
            return True
        if not guesses and mode is Mode.DUPLEX and self._never_overtakes():
            return False
        survival = self._survival.of_next(guesses)
        return worth_drafting(survival, self._felt_draft_ms, self._felt_slope_ms, self.tpot_ms)

    def chances(self, guesses: Sequence[Guess]) -> bytes:
        """Of each guess the chance that it is accepted if those before it are, in 255ths."""
        return bytes(round(255 * self._survival.of([one])) for one in guesses)

    def _never_overtakes(self) -> bool:
        """Whether a new branch would hardly ever be of use before the cloud has written its tokens."""
        chance = overtaking_chance(self.alpha, self.draft_ms, self.rtt_ms, self.verify_ms(1))
        return chance < LEAST_OVERTAKING

    @property
    def _felt_draft_ms(self) -> float:
        """c_d as far as it counts: little where the text does not wait for it."""
        weight = self._policy.prefer.draft_weight if self.mode.drafts_on else 1.0
        return weight * self.draft_ms

    @property
    def _felt_slope_ms(self) -> float:
        """b, and on a narrow link that is waited for also one more token's way up."""
        way_ms = self._link.token_ms if self.mode is Mode.LOCKSTEP else 0.0
        return self._paces.verify(self.mode).slope_ms + way_ms

    def explain(self, plan: Plan) -> Explanation:
        """The numbers behind a plan."""
        predictions = self.predictions() if self._verdicts else {}
        return Explanation(
            mode=plan.mode,
            reason="as asked for" if self._policy.mode else self._modes.reason,
            limit=plan.limit,
            rtt_ms=self.rtt_ms,
            jitter_ms=self._link.jitter_ms,
            uplink_bytes_per_s=self._link.uplink_bytes_per_s,
            queue_ms=self._paces.queue_ms(plan.mode),
            draft_ms=self.draft_ms,
            verify_a_ms=self.verify_ms(0),
            verify_b_ms=self._paces.verify(plan.mode).slope_ms,
            alpha=self.alpha,
            tpot_ms=self.tpot_ms,
            bar=survival_bar(self._felt_draft_ms, self._felt_slope_ms, self.tpot_ms),
            predicted_ms={mode: cost.ms for mode, cost in predictions.items()},
        )

    def state(self) -> dict[str, Any]:
        """What is known of the two models, for ``restore``; nothing of the link, which may be another."""
        return {"survival": self._survival.state(), "paces": self._paces.state()}

    def restore(self, state: Mapping[str, Any], weight: float = OLD_WEIGHT) -> None:
        """Take up what was learnt another time with the same pair; new evidence soon outweighs it.

        Args:
            state: from ``state``.
            weight: what evidence from then counts.

        Raises:
            KeyError, TypeError, ValueError: it is no such state.
        """
        self._survival.restore(state["survival"], weight)
        self._paces.restore(state["paces"], weight)
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError("no such figures were ever measured")

    def observe_draft(self, count: int, ms: float, mode: Mode) -> None:
        """Learn from ``count`` tokens drafted in ``ms``, model and choosing, begun in ``mode``."""
        self._paces.observe_draft(mode, count, ms)

    def observe_late(self, judged: Sequence[Judged]) -> None:
        """Learn from a guess that came too late to be sent."""
        self._survival.add(judged)
        self._observe_probe(judged, 0)

    def observe_round_trip(self, ms: float) -> None:
        """Learn from another message than a draft and its answer, without the server's time."""
        self._link.add(ms)

    def observe(self, seen: Seen) -> None:
        """Learn from a verdict."""
        self._verdicts += 1
        self._budget = min(seen.gamma_budget or MAX_DRAFT_TOKENS, MAX_DRAFT_TOKENS)
        # Elsewhere nothing is refused, and what was true of another hour's load is forgotten.
        self._refused.add(float(seen.fill_refused), 1.0 if seen.mode.fills else 0.2)
        self._survival.add(seen.tested)
        self._paces.observe(seen.mode, seen.num_drafted, seen.forward_ms, seen.queue_ms)
        if seen.wait_ms is not None:
            self._link.add(seen.wait_ms - seen.server_ms, seen.sent_bytes)
            if seen.sent_bytes and seen.mode is Mode.LOCKSTEP:
                self._link.add_size(seen.num_drafted, seen.sent_bytes)  # elsewhere a block comes in pieces
        self._modes.observe(
            seen.mode, tokens=seen.committed, ms=self._without_stall(seen), passes=1, rtt_ms=self.rtt_ms
        )
        if seen.mode is Mode.LOCKSTEP:
            self._empty_rounds = 0 if seen.num_drafted else self._empty_rounds + 1
            self._last_gamma = seen.num_drafted or self._last_gamma
        else:
            self._empty_rounds = 0
        self._observe_probe(seen.tested, seen.committed)

    def _observe_probe(self, judged: Sequence[Judged], committed: int) -> None:
        """Count the tokens about which no guess was made; a failed probe doubles the wait for the next."""
        if not judged:
            self._untested_tokens += committed
            return
        if self._untested_tokens >= self._probe_after:
            failed = not all(one.accepted for one in judged)
            self._probe_after = min(2 * self._probe_after, MAX_PROBE_TOKENS) if failed else FIRST_PROBE_TOKENS
        self._untested_tokens = 0

    def _without_stall(self, seen: Seen) -> float:
        """The time, cut where it tells of one stall; a lasting change of the link moves the median."""
        work_ms = seen.server_ms + self.draft_ms * max(1, seen.num_drafted)
        return min(seen.elapsed_ms, work_ms + STALL_ROUND_TRIPS * max(self.rtt_ms, 10.0))
