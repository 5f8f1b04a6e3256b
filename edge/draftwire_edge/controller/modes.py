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
#: A round trip that has changed by this factor (and this many ms) makes figures worthless.
LINK_FACTOR, LINK_MS = 1.5, 10.0
#: A mode's figures are those of about its last twenty verdicts.
_DECAY = 0.95
#: Below this R, in ms, both ends may share a machine, and drafting beside a pass slows the pass down. On any
#: longer link nothing is quicker than duplex, which never waits.
SAME_MACHINE_MS = 5.0
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

    def choose(self, formulas: Mapping[Mode, Cost], rtt_ms: float, allowed: Collection[Mode]) -> Mode:
        """The mode to use from now on.

        Args:
            formulas: what each mode would cost, by the formulas.
            rtt_ms: R at present.
            allowed: the modes to choose from.
        """
        if self.current in allowed and self._on_trial(self.current):
            return self.current  # for the reason it was begun for
        if self.current is Mode.CLOUD and (again := self._worth_another_try(allowed)) is not None:
            self._switch(again, "another try")
            return again
        alone = max(formulas[Mode.CLOUD].ms, LEAST_MS)
        sensible = self._sensible(allowed, rtt_ms)
        scores = {mode: self._score(mode, formulas[mode], rtt_ms, alone) for mode in Mode if mode in sensible}
        best = min(scores, key=lambda mode: scores[mode])
        present = scores.get(self.current)
        if present is None:
            self._switch(best, f"{self.current.value} is not possible now")
        elif scores[best] < (1.0 - HYSTERESIS) * present:
            self._switch(best, f"cheaper than {self.current.value}, {scores[best]:.2f} against {present:.2f}")
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

    def _sensible(self, allowed: Collection[Mode], rtt_ms: float) -> Collection[Mode]:
        """The modes that could be the cheapest; where only time counts, waiting rarely is."""
        if self._pass_weight or Mode.DUPLEX not in allowed:
            return allowed
        waiting = {Mode.LOCKSTEP} if rtt_ms < SAME_MACHINE_MS else set()
        return {Mode.DUPLEX, Mode.CLOUD, *waiting}.intersection(allowed)

    def _worth_another_try(self, allowed: Collection[Mode]) -> Mode | None:
        """A mode to leave the cloud alone for: there nothing is learnt of the link or the drafter.

        Duplex where it is possible, since a try of it costs next to nothing.
        """
        mode = Mode.DUPLEX if Mode.DUPLEX in allowed else Mode.LOCKSTEP
        tried = self._tried[mode]
        return mode if mode in allowed and tried.tokens_since >= tried.retry_after else None

    def _on_trial(self, mode: Mode) -> bool:
        """Whether a mode has not shown yet what it can do; a single slow block is no evidence."""
        return self._tried[mode].verdicts < TRIAL_VERDICTS

    def _score(self, mode: Mode, formula: Cost, rtt_ms: float, alone_ms: float) -> float:
        """Cost of a mode: its own figures while they hold, else the formula, taken a little low."""
        tried = self._tried[mode]
        holds = mode is self.current or (
            tried.tokens_since < tried.retry_after and not _changed(tried.rtt_ms, rtt_ms)
        )
        if tried.verdicts >= TRIAL_VERDICTS and holds:
            ms, passes, keen = tried.ms.value, tried.passes.value, 1.0
        else:
            # Nothing is to be found out about the cloud alone.
            keen = 1.0 if mode is Mode.CLOUD else 1.0 - HYSTERESIS - CURIOSITY
            ms, passes = formula.ms, formula.passes
        if self._pass_weight and mode is not Mode.CLOUD and ms * keen > (1.0 + HYSTERESIS) * alone_ms:
            return float("inf")  # cheap for the cloud, but slower than the cloud alone
        return keen * (ms / alone_ms + self._pass_weight * passes)

    def _switch(self, mode: Mode, reason: str) -> None:
        """Leave the present mode; it lost, so it waits longer for its next try."""
        lost = self._tried[self.current]
        lost.retry_after = min(2 * lost.retry_after, MAX_RETRY_TOKENS)
        self._tried[mode].forget()
        self.current, self.reason = mode, reason


def _changed(before_ms: float, now_ms: float) -> bool:
    """Whether a round trip is another one now."""
    low, high = sorted((before_ms, now_ms))
    return high > LINK_FACTOR * low + LINK_MS
