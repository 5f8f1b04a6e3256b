"""Which way of taking turns is the cheapest, from figures of the ones tried and formulas for the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from draftwire_edge.controller.estimators import RatioOfSums
from draftwire_protocol.messages import Mode

#: A mode must be this much cheaper before it replaces the present one.
HYSTERESIS = 0.05
#: One never tried is given a try when the formula says that it costs at most this much more.
CURIOSITY = 0.05
#: Verdicts before a mode's own figures are trusted.
TRIAL_VERDICTS = 4
#: Verdicts that the formula of lockstep is worth beside its own figures. Its verdicts bring very unequal
#: numbers of tokens, and the formula knows acceptance from all guesses that were ever judged.
FORMULA_VERDICTS = 10
#: A mode kept for so many verdicts has not lost, whatever it lost before.
PROVEN_VERDICTS = 20
#: A round trip that has changed by this factor (and this many ms) makes figures worthless.
LINK_FACTOR, LINK_MS = 1.5, 10.0
#: A mode's figures are those of about its last twenty verdicts.
_DECAY = 0.95
#: What a token takes at least, in ms; costs are compared as ratios.
LEAST_MS = 1e-3
#: Tokens after which a mode that lost may be tried again; doubles each time it loses.
FIRST_RETRY_TOKENS = 48
MAX_RETRY_TOKENS = 768


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one output token."""

    ms: float
    #: Forward passes of the target.
    passes: float


@dataclass(slots=True)
class _Tried:
    """What a mode has shown lately."""

    ms: RatioOfSums = field(default_factory=lambda: RatioOfSums(_DECAY))
    passes: RatioOfSums = field(default_factory=lambda: RatioOfSums(_DECAY))
    verdicts: int = 0
    rtt_ms: float = 0.0
    #: Tokens written since, in other modes, and how many of them make it worth another try.
    tokens_since: int = 0
    retry_after: int = FIRST_RETRY_TOKENS

    def holds(self, rtt_ms: float) -> bool:
        """Whether these figures still count while another mode is used."""
        lately = self.tokens_since < self.retry_after and not _changed(self.rtt_ms, rtt_ms)
        return lately and self.verdicts >= TRIAL_VERDICTS

    def forget(self) -> None:
        """Start anew."""
        self.ms, self.passes = RatioOfSums(_DECAY), RatioOfSums(_DECAY)
        self.verdicts = 0


class ModeChoice:
    """Keeps a running cost for each mode and says which one to use.

    Args:
        first: the mode to begin with.
        pass_weight: what one target pass a token weighs, in times per token of the cloud alone.
    """

    def __init__(self, first: Mode, pass_weight: float) -> None:
        self.current = first
        #: Why it is the present one.
        self.reason = "to begin with"
        self._pass_weight = pass_weight
        self._tried = {mode: _Tried() for mode in Mode}

    def tpot_ms(self, mode: Mode) -> float:
        """TPOT*, running average time per token in a mode; 0 while it was not used."""
        return self._tried[mode].ms.value

    def observe(self, mode: Mode, *, tokens: int, ms: float, passes: int, rtt_ms: float) -> None:
        """Take in one verdict.

        Args:
            mode: that it came in.
            tokens: committed.
            ms: since the one before.
            passes: of the target.
            rtt_ms: R at present.
        """
        for other, tried in self._tried.items():
            if other is not mode:
                tried.tokens_since += tokens
        tried = self._tried[mode]
        if tried.verdicts and _changed(tried.rtt_ms, rtt_ms):
            tried.forget()
        tried.ms.add(ms, tokens)
        tried.passes.add(passes, tokens)
        tried.verdicts += 1
        tried.rtt_ms, tried.tokens_since = rtt_ms, 0
        if tried.verdicts >= PROVEN_VERDICTS:
            tried.retry_after = FIRST_RETRY_TOKENS

    def choose(
        self,
        formulas: Mapping[Mode, Cost],
        rtt_ms: float,
        allowed: Collection[Mode],
        *,
        may_share: bool = False,
        alone_known: bool = True,
    ) -> Mode:
        """The mode to use from now on.

        Args:
            formulas: what each mode would cost, by the formulas.
            rtt_ms: R at present.
            allowed: the modes to choose from.
            may_share: whether both ends may share a machine.
            alone_known: whether a pass was ever measured with nobody drafting meanwhile.
        """
        if self.current in allowed and self._on_trial(self.current):
            return self.current  # for the reason it was begun for
        sensible = self._sensible(allowed, may_share=may_share)
        if not alone_known and self.current.drafts_on and Mode.LOCKSTEP not in sensible:
            return self._try_cloud()
        if self.current is Mode.CLOUD and (again := self._worth_another_try(formulas, sensible)) is not None:
            self._switch(again, rtt_ms, "another try")
            return again
        alone = max(formulas[Mode.CLOUD].ms, LEAST_MS)
        formulas = self._with_handling(formulas, rtt_ms)
        scores = {mode: self._score(mode, formulas[mode], rtt_ms, alone) for mode in Mode if mode in sensible}
        best = min(scores, key=lambda mode: scores[mode])
        present = scores.get(self.current)
        if present is None:
            self._switch(best, rtt_ms, f"{self.current.value} is not possible now")
        elif scores[best] < (1.0 - HYSTERESIS) * present:
            found = f"{scores[best]:.2f} against {present:.2f}"
            self._switch(best, rtt_ms, f"cheaper than {self.current.value}, {found}")
        else:
            self.reason = f"no other is {HYSTERESIS:.0%} cheaper{self._but_for(formulas, allowed, sensible)}"
        return self.current

    def _but_for(
        self, formulas: Mapping[Mode, Cost], allowed: Collection[Mode], sensible: Collection[Mode]
    ) -> str:
        """The modes that look cheaper by the formulas and are left out all the same."""
        least_ms = min(formulas[mode].ms for mode in sensible)
        left_out = [
            mode.value
            for mode in Mode
            if mode in allowed and mode not in sensible and formulas[mode].ms < (1.0 - HYSTERESIS) * least_ms
        ]
        return f", {' and '.join(left_out)} left out for waiting on the link" if left_out else ""

    def _with_handling(self, formulas: Mapping[Mode, Cost], rtt_ms: float) -> Mapping[Mode, Cost]:
        """The formulas, and for each verdict what the cloud alone has shown beyond its own formula.

        They know waiting, passes, drafts and the way, not the work around them; shown figures contain it.
        """
        handling_ms = max(0.0, self._tried[Mode.CLOUD].ms.value - formulas[Mode.CLOUD].ms)
        if not (handling_ms and self._trusted(Mode.CLOUD, rtt_ms)):
            return formulas
        return {
            mode: Cost(cost.ms + handling_ms * cost.passes, cost.passes) for mode, cost in formulas.items()
        }

    def _sensible(self, allowed: Collection[Mode], *, may_share: bool) -> Collection[Mode]:
        """The modes that could be the cheapest, where only time counts.

        Nothing is quicker than duplex, which never waits, unless drafting beside a pass slows the pass down.
        """
        if self._pass_weight or Mode.DUPLEX not in allowed:
            return allowed
        waiting = {Mode.LOCKSTEP} if may_share else set()
        return {Mode.DUPLEX, Mode.CLOUD, *waiting}.intersection(allowed)

    def _try_cloud(self) -> Mode:
        """See what the cloud takes by itself: who does not know it cannot promise never to be slower."""
        self._tried[Mode.CLOUD].forget()
        self.current, self.reason = Mode.CLOUD, "to see what it takes alone"
        return self.current

    def _worth_another_try(self, formulas: Mapping[Mode, Cost], sensible: Collection[Mode]) -> Mode | None:
        """A mode to leave the cloud alone for: there nothing is learnt of the link or the drafter.

        Of those that have waited long enough, the cheapest by the formulas.
        """
        waited = [
            mode
            for mode in (Mode.DUPLEX, Mode.LOCKSTEP)
            if mode in sensible and self._tried[mode].tokens_since >= self._tried[mode].retry_after
        ]
        return min(waited, key=lambda mode: formulas[mode].ms, default=None)

    def _on_trial(self, mode: Mode) -> bool:
        """Whether a mode has not shown yet what it can do; a single slow block is no evidence."""
        return self._tried[mode].verdicts < TRIAL_VERDICTS

    def _score(self, mode: Mode, formula: Cost, rtt_ms: float, alone_ms: float) -> float:
        """Cost of a mode: its own figures while they hold, else the formula, taken a little low."""
        tried = self._tried[mode]
        if self._trusted(mode, rtt_ms):
            ms, passes, keen = self._shown_ms(mode, formula.ms), tried.passes.value, 1.0
        else:
            # Nothing is to be found out about the cloud alone.
            keen = 1.0 if mode is Mode.CLOUD else 1.0 - HYSTERESIS - CURIOSITY
            ms, passes = formula.ms, formula.passes
        if self._pass_weight and mode is not Mode.CLOUD and ms * keen > (1.0 + HYSTERESIS) * alone_ms:
            return float("inf")  # cheap for the cloud, but slower than the cloud alone
        return keen * (ms / alone_ms + self._pass_weight * passes)

    def _trusted(self, mode: Mode, rtt_ms: float) -> bool:
        """Whether a mode's own figures count."""
        tried = self._tried[mode]
        return tried.verdicts >= TRIAL_VERDICTS if mode is self.current else tried.holds(rtt_ms)

    def _shown_ms(self, mode: Mode, formula_ms: float) -> float:
        """A mode's own time per token; of lockstep, as far as so few verdicts can tell."""
        tried = self._tried[mode]
        if mode is not Mode.LOCKSTEP:
            return tried.ms.value
        doubt = FORMULA_VERDICTS / (FORMULA_VERDICTS + min(tried.verdicts, PROVEN_VERDICTS))
        return (1.0 - doubt) * tried.ms.value + doubt * formula_ms

    def _switch(self, mode: Mode, rtt_ms: float, reason: str) -> None:
        """Leave the present mode; where it lost to more than a promise, it waits longer for its next try."""
        lost, tried = self._tried[self.current], self._tried[mode]
        promised = mode is not Mode.CLOUD and not tried.holds(rtt_ms)
        if promised:
            tried.forget()
        else:
            lost.retry_after = min(2 * lost.retry_after, MAX_RETRY_TOKENS)
        self.current, self.reason = mode, reason


def _changed(before_ms: float, now_ms: float) -> bool:
    """Whether a round trip is another one now."""
    low, high = sorted((before_ms, now_ms))
    return high > LINK_FACTOR * low + LINK_MS
