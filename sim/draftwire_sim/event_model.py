"""One session decoded by an edge and a cloud together: who waits for whom, and what a token costs.

Left out: jitter, bandwidth, messages of more than one drafted token, other sessions. A draft that turns out
useless while it is made is dropped on the spot. Drafting a token includes reading the one before it; what the
cloud wrote beyond that is read first, at ``catch_up`` of the drafting time each.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import numpy as np


class Turns(Enum):
    """The ways to take turns."""

    CLOUD = "cloud"
    LOCKSTEP = "lockstep"
    PIPELINED = "pipelined"
    DUPLEX = "duplex"


@dataclass(frozen=True, slots=True)
class Costs:
    """What everything takes.

    Raises:
        ValueError: for a time below 0.
    """

    #: c_d: to draft one token.
    draft_ms: float
    #: a of t_v(n) = a + b·n: of a forward pass of the target.
    pass_ms: float
    #: b: of each new token in it.
    pass_token_ms: float
    #: R: there and back, without work.
    round_trip_ms: float
    #: To read a token that was not drafted, as a part of ``draft_ms``.
    catch_up: float = 0.2

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in self.__slots__}
        for name, value in named.items():
            if not value >= 0:
                raise ValueError(f"{name} is {value}; it cannot be below 0")

    def verify_ms(self, n: int) -> float:
        """t_v(n): a forward pass over n new tokens, n - 1 of them drafts."""
        return self.pass_ms + self.pass_token_ms * n


@dataclass(frozen=True, slots=True)
class Policy:
    """How the turns are taken.

    Raises:
        ValueError: gamma below 1, or alpha that is no probability.
    """

    turns: Turns
    #: How many drafted tokens may be unverified at once; in lockstep the block length.
    gamma: int = 64
    #: Believed chance that a drafted token is accepted; None drafts on whatever the survival.
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; it must be at least 1")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it must lie in [0, 1]")

    def drafts_on(self, unverified: int, costs: Costs, tpot_ms: float | None) -> bool:
        """Whether one more token is worth drafting: P(prefix survives it) > (c_d + b) / TPOT.

        Args:
            unverified: drafted tokens without a verdict; with none of them there is always one more.
            costs: what it takes.
            tpot_ms: time per token so far; None while nothing is known.
        """
        if unverified == 0:
            return True
        if unverified >= self.gamma:
            return False
        if self.alpha is None or tpot_ms is None:
            return True
        return self.alpha ** (unverified + 1) * tpot_ms > costs.draft_ms + costs.pass_token_ms


@dataclass(frozen=True, slots=True)
class Figures:
    """What a committed token costs on average."""

    ms_per_token: float
    #: Target passes.
    passes_per_token: float
    #: Drafted in vain or not.
    drafted_per_token: float


def draw_matches(alpha: float, size: int, seed: int = 0) -> list[bool]:
    """Whether the draft at each position would be the target's token: independent, with chance alpha."""
    drawn: list[bool] = (np.random.default_rng(seed).random(size) < alpha).tolist()
    return drawn


def simulate(policy: Policy, costs: Costs, matches: Sequence[bool], tokens: int | None = None) -> Figures:
    """Decode one text.

    Args:
        policy: how the turns are taken.
        costs: what everything takes.
        matches: whether the draft at each position is the target's token, ``[> 0]``; repeated where the
            text or its drafts are longer.
        tokens: length of the text, as many as ``matches`` by default. The last verdict may exceed it.

    Raises:
        ValueError: an empty text.
    """
    tokens = len(matches) if tokens is None else tokens
    if not matches or tokens < 1:
        raise ValueError("there must be at least one token and one match")
    match policy.turns:
        case Turns.CLOUD:
            return Figures(costs.verify_ms(1), 1.0, 0.0)
        case Turns.LOCKSTEP:
            return _lockstep(policy, costs, matches, tokens)
        case Turns.PIPELINED | Turns.DUPLEX:
            return _overlapped(policy, costs, matches, tokens)


def _lockstep(policy: Policy, costs: Costs, matches: Sequence[bool], tokens: int) -> Figures:
    """Draft a block, send it, wait, repeat."""
    now_ms, committed, passes, drafted = 0.0, 0, 0, 0
    while committed < tokens:
        tpot_ms = now_ms / committed if committed else None
        gamma = next(k for k in count(1) if not policy.drafts_on(k, costs, tpot_ms))
        now_ms += gamma * costs.draft_ms + costs.round_trip_ms + costs.verify_ms(gamma + 1)
        committed += accepted(matches, committed, gamma) + 1
        passes += 1
        drafted += gamma
    return Figures(now_ms / committed, passes / committed, drafted / committed)


def _overlapped(policy: Policy, costs: Costs, matches: Sequence[bool], tokens: int) -> Figures:
    """Both sides at work at once."""
    clock = _Clock()
    edge = _Edge(policy, costs, matches, clock)
    cloud = _Cloud(costs, matches, clock, fills=policy.turns is Turns.DUPLEX)
    edge.send, cloud.send = cloud.receive, edge.receive
    clock.after(0.0, edge.go)
    clock.after(0.0, cloud.go)
    while cloud.committed < tokens:
        clock.advance()
    return Figures(
        clock.now_ms / cloud.committed, cloud.passes / cloud.committed, edge.num_drafted / cloud.committed
    )


def accepted(matches: Sequence[bool], start: int, gamma: int) -> int:
    """How many of gamma drafts from position ``start`` on are accepted."""
    return next((k for k in range(gamma) if not matches[(start + k) % len(matches)]), gamma)


class _Clock:
    """What happens next; of two events at one moment the one planned first."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), action))

    def advance(self) -> None:
        self.now_ms, _, action = heapq.heappop(self._events)
        action()


@dataclass(frozen=True, slots=True)
class _Branch:
    """The edge's guesses since its last miss."""

    start: int
    #: One behind the last guess.
    end: int
    #: Position of the first wrong guess; neither side knows it before a verdict.
    wrong_at: int | None = None

    def alive(self, committed: int) -> bool:
        """Whether all guesses among the committed tokens are right."""
        return self.wrong_at is None or self.wrong_at >= committed

    def extended(self, *, right: bool) -> _Branch:
        """One guess more."""
        wrong_at = self.end if self.wrong_at is None and not right else self.wrong_at
        return _Branch(self.start, self.end + 1, wrong_at)


def _nobody(_: object) -> None:
    """Where messages go before both sides exist."""


@dataclass(slots=True)
class _Edge:
    """Drafts on until the policy says wait; starts anew where a verdict says so."""

    policy: Policy
    costs: Costs
    matches: Sequence[bool]
    clock: _Clock
    #: Delivers a branch to the cloud; called when it arrives.
    send: Callable[[_Branch], None] = _nobody
    num_drafted: int = 0
    branch: _Branch = field(default_factory=lambda: _Branch(0, 0))
    known: int = 0
    busy: bool = False

    def go(self) -> None:
        """Begin the next draft, if there is to be one."""
        unverified = self.branch.end - self.known
        tpot_ms = self.clock.now_ms / self.known if self.known else None
        if self.busy or not self.policy.drafts_on(unverified, self.costs, tpot_ms):
            return
        self._begin(self.costs.draft_ms)

    def _begin(self, draft_ms: float) -> None:
        self.busy = True
        begun = self.branch
        self.clock.after(draft_ms, lambda: self._end(begun))

    def _end(self, begun: _Branch) -> None:
        """A draft is ready, unless its branch died meanwhile."""
        if begun is not self.branch:
            return
        right = self.matches[self.branch.end % len(self.matches)]
        self.branch = branch = self.branch.extended(right=right)
        self.num_drafted += 1
        self.busy = False
        self.clock.after(self.costs.round_trip_ms / 2, lambda: self.send(branch))
        self.go()

    def receive(self, committed: int) -> None:
        """A verdict: everything before ``committed`` is final."""
        self.known = committed
        if self.branch.alive(committed) and self.branch.end >= committed:
            self.go()
            return
        missed = max(0, committed - self.branch.end)
        self.branch = _Branch(committed, committed)
        self._begin(self.costs.draft_ms * (1 + self.costs.catch_up * missed))


@dataclass(slots=True)
class _Cloud:
    """Verifies whatever has arrived; in duplex it never waits."""

    costs: Costs
    matches: Sequence[bool]
    clock: _Clock
    fills: bool
    #: Delivers the committed length to the edge; called when it arrives.
    send: Callable[[int], None] = _nobody
    committed: int = 0
    passes: int = 0
    branch: _Branch = field(default_factory=lambda: _Branch(0, 0))
    busy: bool = False

    def receive(self, branch: _Branch) -> None:
        """Guesses arrive, in the order they were made."""
        self.branch = branch
        self.go()

    def go(self) -> None:
        """Begin a pass over the drafts at hand, or over one token."""
        drafts = self._usable()
        if self.busy or not (drafts or self.fills):
            return
        self.busy = True
        self.clock.after(self.costs.verify_ms(drafts + 1), lambda: self._end(drafts))

    def _usable(self) -> int:
        """Drafts beyond the committed tokens that follow from them."""
        usable = self.branch.alive(self.committed) and self.branch.start <= self.committed
        return max(0, self.branch.end - self.committed) if usable else 0

    def _end(self, drafts: int) -> None:
        """A pass is over: commit, tell the edge, go on."""
        self.committed = committed = self.committed + accepted(self.matches, self.committed, drafts) + 1
        self.passes += 1
        self.busy = False
        self.clock.after(self.costs.round_trip_ms / 2, lambda: self.send(committed))
        self.go()
