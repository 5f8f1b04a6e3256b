"""How fast both models are: while one waits for the other, and while both work at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftwire_edge.controller.estimators import RatioOfSums, VerifyTime
from draftwire_protocol.messages import Mode

#: Verdicts in the other kind of modes after which a pace is out of date: the cloud may be another by then.
FRESH_VERDICTS = 64
#: A pass that takes this many times longer beside drafting shares a machine with the drafter.
CONTENTION = 1.2
#: No token takes a quarter of an hour.
_SENSIBLE_MS = 1e6


class Pace:
    """c_d, t_v(n) and the wait before a forward pass, under the same conditions."""

    def __init__(self) -> None:
        self.draft = RatioOfSums(decay=0.9)
        self.verify = VerifyTime()
        #: Of the moment, and so never kept for another time.
        self.queue = RatioOfSums(decay=0.9)
        #: Verdicts in the other kind of modes since the last of these; None before there was one of these.
        self.age: int | None = None

    @property
    def fresh(self) -> bool:
        """Whether it was measured lately; what is remembered from another time was not."""
        return self.age is not None and self.age < FRESH_VERDICTS

    def state(self) -> dict[str, Any]:
        """What was seen, for ``restore``."""
        return {"draft_ms": self.draft.state(), "verify": self.verify.state()}

    def restore(self, state: Mapping[str, Any], weight: float) -> None:
        """Take up ``weight`` of what was seen another time; KeyError, TypeError, ValueError if it is none."""
        self.draft.restore(state["draft_ms"], weight)
        self.verify.restore(state["verify"], weight)
        if not (self.draft.value < _SENSIBLE_MS and self.verify.ms(1) < _SENSIBLE_MS):  # NaN is neither
            raise ValueError("no such figures were ever measured")


class Paces:
    """One pace for modes in which the ends take turns, one for those in which they work at once.

    On one machine, or one short of power, each slows the other down: figures measured in duplex would make
    lockstep look slow there, and those of lockstep would make duplex look quick.
    """

    def __init__(self) -> None:
        self._of = {False: Pace(), True: Pace()}

    def known(self) -> bool:
        """Whether both models were measured, in whatever mode."""
        both = self._of.values()
        return any(pace.verify.known for pace in both) and any(pace.draft.value > 0.0 for pace in both)

    @property
    def apart_known(self) -> bool:
        """Whether a pass was ever measured with nobody drafting meanwhile."""
        return self._of[False].verify.known

    @property
    def contended(self) -> bool:
        """Whether drafting slows passes down: both kinds were measured, by themselves lately."""
        apart, at_once = self._of[False], self._of[True].verify
        return apart.fresh and at_once.known and at_once.ms(1) > CONTENTION * apart.verify.ms(1)

    def observe_draft(self, mode: Mode, count: int, ms: float) -> None:
        """Learn from ``count`` tokens drafted in ``ms``; nothing from none."""
        if count:
            self._of[mode.drafts_on].draft.add(ms, count)

    def observe(self, mode: Mode, num_drafted: int, forward_ms: float, queue_ms: float) -> None:
        """Learn from a verdict: one pass over ``num_drafted + 1`` tokens, and the wait before it."""
        own, other = self._of[mode.drafts_on], self._of[not mode.drafts_on]
        own.verify.add(num_drafted + 1, forward_ms)
        own.queue.add(queue_ms, 1)
        own.age = 0
        if other.age is not None:
            other.age += 1

    def draft_ms(self, mode: Mode) -> float:
        """c_d in ``mode``, as ``_best`` says."""
        return self._best(mode, lambda pace: pace.draft.value).draft.value

    def verify(self, mode: Mode) -> VerifyTime:
        """t_v in ``mode``, as ``_best`` says."""
        return self._best(mode, lambda pace: pace.verify.ms(1)).verify

    def _best(self, mode: Mode, ms: Callable[[Pace], float]) -> Pace:
        """The pace to go by in ``mode``: its own if that is fresh.

        Otherwise, as nothing is quicker beside other work than by itself: taking turns the quicker of both,
        and working at once the other one if that is fresh.

        Args:
            mode: to be foretold.
            ms: the figure of interest; 0 where it was not measured.
        """
        own, other = self._of[mode.drafts_on], self._of[not mode.drafts_on]
        if not ms(own) or not ms(other):
            return own if ms(own) else other
        if own.fresh:
            return own
        if mode.drafts_on:
            return other if other.fresh else own
        return min(own, other, key=ms)

    def queue_ms(self, mode: Mode) -> float:
        """Wait in the cloud before a forward pass, in modes such as ``mode``.

        Taking turns, it is for other texts' passes; working at once, a draft waits for its own text's too, so
        nothing measured there is used for the other modes.
        """
        own = self._of[mode.drafts_on]
        return own.queue.value if own.fresh else 0.0

    @property
    def miss_queue_ms(self) -> float:
        """Wait of the first draft after a miss, when the cloud has nothing of its own text to do.

        That is the wait for other texts' passes, as taking turns measures it. Where that is not known,
        working at once tells it, too high by what drafts wait for their own text's pass: about half a c_d.
        """
        return next((pace.queue.value for pace in self._of.values() if pace.fresh), 0.0)

    def state(self) -> dict[str, Any]:
        """What was seen, for ``restore``."""
        return {"apart": self._of[False].state(), "at_once": self._of[True].state()}

    def restore(self, state: Mapping[str, Any], weight: float) -> None:
        """Take up ``weight`` of what was seen another time; KeyError, TypeError, ValueError if it is none."""
        self._of[False].restore(state["apart"], weight)
        self._of[True].restore(state["at_once"], weight)
