"""Who joins the next forward pass, and with how many tokens.

Pure: no torch, no asyncio; time comes in as an argument. Messages wait in a stream's inbox and are taken
in between steps, so a session is never touched while its tokens are in the target.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from draftwire_cloud.fairness import DeficitRoundRobin
from draftwire_cloud.gamma_budget import budget, choose_lengths, survival_bar
from draftwire_cloud.leases import Slot
from draftwire_cloud.read_budget import read_seconds
from draftwire_cloud.session import CloudSession, Work
from draftwire_cloud.step_cost import PassShape, StepCost
from draftwire_cloud.think_time import Smoothed, ThinkTime
from draftwire_cloud.window import wait_until
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EdgeMessage,
    Finished,
    Mode,
    Verdict,
)

S = TypeVar("S", bound=Slot)

#: Most messages that wait for one stream; its edge is not read from while there are more.
INBOX_MESSAGES = 64
#: Tokens of prompts in a pass at least, where they take hardly any time or nothing is known of it.
LEAST_READ = 8
#: More tokens than this that the target has not seen are a prompt, fewer belong to the verdict.
_READS = 32
#: Fills may lengthen a pass that others wait for by this share.
FILL_SHARE = 0.05
#: A fill is put off for as long as so many passes take, then it is owed.
FILL_PATIENCE = 2
#: An edge that has not drafted for so long is not reckoned with, in seconds.
_ACTIVE_S = 2.0
#: Tokens of credit a turn gives a session, and a tenant.
_SESSION_QUANTUM, _TENANT_QUANTUM = 64, 256
#: Weight of the newest figure in running averages.
_NEW = 0.2


class Received(NamedTuple):
    """A message and when it came, in seconds."""

    message: EdgeMessage
    at: float


@dataclass(slots=True, eq=False)
class Stream(Generic[S]):
    """One Decode stream: a session, its KV slot, and its two mailboxes."""

    session: CloudSession
    slot: S
    #: Tokens the slot already held when the stream was opened.
    cached: int
    opened_at: float
    #: Delivers a message, or the error that ends the stream.
    send: Callable[[CloudMessage | DraftwireError], None]
    #: Whose it is: sessions of one tenant share its turns.
    tenant: str = ""
    inbox: deque[Received] = field(default_factory=deque)
    #: When the work at hand became known, in seconds.
    ready_at: float = 0.0
    first_verdict_sent: bool = False
    #: When its next draft is due.
    think: ThinkTime = field(default_factory=ThinkTime)
    #: Whether a longer beginning was looked for among other sessions.
    shared: bool = False
    #: A fill was put off since the last verdict.
    fill_refused: bool = False
    #: New tokens of its last verdict, a guess at those of the next.
    verify_rows: int = 1
    #: Its keys and values were dropped so that others could go on, and no pass has fed them again yet.
    emptied: bool = False
    #: The edge will say nothing more.
    half_closed: bool = False
    #: The edge was told the end, or is gone.
    closed: bool = False
    #: Whoever served it is gone: the slot is free as soon as no step uses it.
    left: bool = False

    def end(self, last: Finished | DraftwireError) -> None:
        """Send the last message, once."""
        if not self.closed:
            self.closed = True
            self.send(last)

    def end_if_finished(self) -> None:
        """Say so when the text is over."""
        if self.session.finished:
            self.end(self.session.finish_message)


class Job(NamedTuple, Generic[S]):
    """One stream's part of a step."""

    stream: Stream[S]
    work: Work


class Step(NamedTuple, Generic[S]):
    """What to do next."""

    jobs: list[Job[S]]
    #: Without jobs: when to ask again at the latest, although there is work; None when there is none.
    wait_until: float | None = None


@dataclass(slots=True)
class _Room(Generic[S]):
    """What still fits into the step, and what is in it."""

    most_jobs: int
    tokens_to_read: int
    jobs: list[Job[S]] = field(default_factory=list)

    @property
    def jobs_left(self) -> int:
        """How many more may join."""
        return self.most_jobs - len(self.jobs)


class Scheduler(Generic[S]):
    """Chooses each forward pass: everyone's drafts, a piece of waiting prompts, fills where they are free.

    Args:
        max_batch: most sessions in one step.
        prefill_chunk: most tokens of a prompt in one step.
    """

    def __init__(self, max_batch: int = 1, prefill_chunk: int = 512) -> None:
        self.cost = StepCost()
        self._max_batch = max_batch
        self._prefill_chunk = prefill_chunk
        self._tenants: DeficitRoundRobin[str] = DeficitRoundRobin(_TENANT_QUANTUM)
        self._turns: dict[str, DeficitRoundRobin[Stream[S]]] = {}
        #: What a pass over drafts alone usually takes, in seconds.
        self._verify_s = 0.0
        #: What one more drafted token must promise to be worth its place in a pass; 0 with one session.
        self._bar = 0.0
        #: When the last verdict left, in seconds.
        self._pass_ended_at = -math.inf
        #: How long edges take to draft.
        self._think = Smoothed()

    def __len__(self) -> int:
        return sum(len(turns) for turns in self._turns.values())

    @property
    def streams(self) -> list[Stream[S]]:
        """Every stream, in turn order."""
        return [stream for tenant in self._tenants.members for stream in self._turns[tenant].members]

    @property
    def reading_s(self) -> float:
        """Seconds it takes to read the prompts that wait."""
        waiting = sum(_unread(one) for one in self.streams if _unread(one) > _READS)
        return waiting * self.cost.row_s

    def add(self, stream: Stream[S]) -> None:
        """A new stream waits behind the others of its tenant."""
        stream.think.usual = self._think
        self._tenants.add(stream.tenant)
        self._turns.setdefault(stream.tenant, DeficitRoundRobin(_SESSION_QUANTUM)).add(stream)

    def remove(self, stream: Stream[S]) -> None:
        """Forget a stream; unknown ones are ignored."""
        turns = self._turns.get(stream.tenant)
        if turns is None:
            return
        turns.remove(stream)
        if not len(turns):
            del self._turns[stream.tenant]
            self._tenants.remove(stream.tenant)

    def next_step(self, now: float = 0.0, free_tokens: float = math.inf) -> Step[S]:
        """Choose the next step; no jobs when nobody has work, or when waiting a little pays.

        Args:
            now: seconds.
            free_tokens: how many tokens' keys and values still fit.
        """
        streams = self.streams
        # 1. Take in what arrived for anyone: who is done or wrong hears it now, not when its turn comes.
        for stream in streams:
            self._take_in(stream)
        # 2. Sort who has work: a text to go on with, a prompt to read, a fill.
        wanting = [one for one in streams if not one.closed and one.session.block is not None]
        kept_out = {one for one in wanting if one.emptied and _unread(one) >= free_tokens}
        if len(kept_out) < len(wanting):
            wanting = [one for one in wanting if one not in kept_out]
        reading = {one for one in wanting if _unread(one) > _READS}
        filling = {one for one in wanting if one not in reading and one.session.only_fills}
        verifying = [one for one in wanting if one not in reading and one not in filling]
        drafting = [one for one in streams if one not in verifying and _drafts(one, now)]
        # 3. Wait a moment where that brings more sessions into the pass.
        to_read = self._read_budget(reading, verifying or drafting)
        until = self._window(now, verifying, reading, to_read, drafting)
        if until is not None and len(verifying) < self._max_batch:
            return Step([], until)
        # 4. Fills only where they slow nobody down.
        refused = self._refused_fills(now, filling, verifying, drafting)
        for one in refused:
            one.fill_refused = True
        wanting = [one for one in wanting if one not in refused]
        # 5. In fair order, until the step is full; prompts in pieces that others can bear.
        room: _Room[S] = _Room(self._max_batch, to_read)
        self._take_turns(wanting, room)
        return Step(room.jobs, None if room.jobs else min(map(self._owed_at, refused), default=None))

    def observe(self, jobs: Sequence[Job[S]], lengths: Sequence[int], seconds: float) -> None:
        """Learn what a step took.

        Args:
            jobs: of the step.
            lengths: tokens each job's slot held before it.
            seconds: of the forward pass.
        """
        sizes = [(past, len(job.work.ids)) for past, job in zip(lengths, jobs, strict=True)]
        self.cost.observe(PassShape.of(sizes), seconds)
        verified = [job.stream.first_verdict_sent and job.work.num_logits > 0 for job in jobs]
        drafts = [size for size, kept in zip(sizes, verified, strict=True) if kept]
        if drafts:
            alone = self.cost.predict(PassShape.of(drafts)) if len(drafts) < len(jobs) else seconds
            self._verify_s += (_NEW if self._verify_s else 1.0) * (alone - self._verify_s)

    def advise(self, stream: Stream[S], verdict: Verdict) -> Verdict:
        """The verdict, with what was decided about its session."""
        refused, stream.fill_refused = stream.fill_refused, False
        most = budget(stream.session.acceptance, self._bar)
        return replace(verdict, gamma_budget=most, fill_refused=refused)

    def answered(self, stream: Stream[S], now: float) -> None:
        """A verdict left."""
        stream.think.answered(now)
        self._pass_ended_at = now

    def _window(
        self,
        now: float,
        verifying: Sequence[Stream[S]],
        reading: set[Stream[S]],
        to_read: int,
        drafting: Sequence[Stream[S]],
    ) -> float | None:
        """When to start the pass; None for at once."""
        expected = [due for one in drafting if (due := one.think.next_draft()) is not None]
        ready = [*verifying, *reading]
        if not ready or not expected:
            return None
        sizes = [(one.slot.length, _rows(one)) for one in verifying]
        sizes += [(one.slot.length, to_read) for one in list(reading)[:1]]
        until = wait_until(now, len(ready), expected, self.cost.predict(PassShape.of(sizes)))
        # However promising: the target never idles longer than a pass takes while there is work.
        idle_since = max(self._pass_ended_at, min(one.ready_at for one in ready))
        latest = idle_since + self._verify_s
        return None if until is None or now >= latest else min(until, latest)

    def _owed_at(self, stream: Stream[S]) -> float:
        """From when on a fill may slow others down."""
        return stream.think.answered_at + FILL_PATIENCE * self._verify_s

    def _refused_fills(
        self,
        now: float,
        filling: set[Stream[S]],
        verifying: Sequence[Stream[S]],
        drafting: Sequence[Stream[S]],
    ) -> set[Stream[S]]:
        """The fills that would slow down others' verdicts, and are not owed yet."""
        free = len(filling)
        if verifying and self.cost.row_s:
            free = int(FILL_SHARE * self._verify_s / self.cost.row_s)
        elif not verifying and any(one not in filling for one in drafting):
            free = 0
        refusable = [one for one in self.streams if one in filling and now < self._owed_at(one)]
        return set(refusable[free:])

    def _read_budget(self, reading: set[Stream[S]], others: Sequence[Stream[S]]) -> int:
        """Tokens of prompts in the next pass."""
        if not reading or not others:
            return self._prefill_chunk
        past = max(one.slot.length for one in reading)
        seconds = read_seconds(
            self._pass_s(others), self._pass_s(others[:1]), readers=len(reading), verifiers=len(others)
        )
        fits = self.cost.affordable(past, seconds, self._prefill_chunk) if self.cost.known else 0
        return max(fits, min(LEAST_READ, self._prefill_chunk))

    def _pass_s(self, streams: Sequence[Stream[S]]) -> float:
        """What a pass over these streams' drafts takes, in seconds; 0 while nothing is known."""
        return self.cost.predict(PassShape.of((one.slot.length, _rows(one)) for one in streams))

    def _take_turns(self, wanting: Sequence[Stream[S]], room: _Room[S]) -> None:
        """Deficit round-robin over tenants and their sessions; those served go to the back."""
        lengths = self._drafted_lengths(wanting)
        left = set(wanting)
        for stream in self.streams:
            if stream not in left:
                self._turns[stream.tenant].rest(stream)
        while left and room.jobs_left:
            for tenant in self._tenants.members:
                waiting = [one for one in self._turns[tenant].members if one in left]
                if not waiting:
                    self._tenants.rest(tenant)
                    continue
                self._tenants.visit(tenant)
                for stream in waiting:
                    self._turns[tenant].visit(stream)
                    if room.jobs_left and self._serve(stream, lengths[stream], room):
                        left.discard(stream)
                self._tenants.to_back(tenant)

    def _serve(self, stream: Stream[S], drafted: int, room: _Room[S]) -> bool:
        """Let a stream into the step if its credit allows; whether it is done with, served or not."""
        reads = _unread(stream) > _READS
        most_read = room.tokens_to_read if reads else _READS
        if not most_read:
            return True  # the pass reads enough already
        turns = self._turns[stream.tenant]
        cost = min(_unread(stream), most_read) + drafted
        if cost > min(turns.credit(stream), self._tenants.credit(stream.tenant)):
            return False
        work = stream.session.next_work(stream.slot.length, most_read, drafted)
        if work is None:
            return True
        if reads:
            room.tokens_to_read = max(0, room.tokens_to_read - len(work.ids))
        else:
            stream.verify_rows = len(work.ids)
        room.jobs.append(Job(stream, work))
        turns.charge(stream, len(work.ids))
        self._tenants.charge(stream.tenant, len(work.ids))
        turns.to_back(stream)
        return True

    def _drafted_lengths(self, wanting: Sequence[Stream[S]]) -> dict[Stream[S], int]:
        """How many drafted tokens of each to verify now.

        A block is cut only where what is left of it waits for the next pass, and where drafts are accepted
        by equality; the chances come from decided tokens alone.
        """
        survivals = [one.session.survivals for one in wanting]
        lengths = list(map(len, survivals))
        if min(len(wanting), self._max_batch) > 1 and self.cost.known:
            cuttable = [one.session.mode.drafts_on for one in wanting]
            offered = [row if cut else [] for row, cut in zip(survivals, cuttable, strict=True)]
            fixed_s = self.cost.fixed_s(len(wanting))
            chosen = choose_lengths(offered, fixed_s, self.cost.row_s)
            lengths = [n if cut else whole for n, cut, whole in zip(chosen, cuttable, lengths, strict=True)]
            verified = [row[:n] for row, n in zip(survivals, lengths, strict=True)]
            self._bar = survival_bar(verified, fixed_s, self.cost.row_s)
        elif wanting:
            self._bar = 0.0
        return dict(zip(wanting, lengths, strict=True))

    def _take_in(self, stream: Stream[S]) -> None:
        """Hand waiting messages to the session; an error ends the stream, not the session."""
        while not stream.closed and stream.inbox:
            received = stream.inbox.popleft()
            try:
                answers = stream.session.receive(received.message)
            except DraftwireError as error:
                stream.end(error)
                return
            stream.ready_at = received.at
            if isinstance(received.message, Draft):
                stream.think.drafted(received.at)
            for answer in answers:
                stream.send(answer)
        if stream.half_closed and stream.session.waiting:
            stream.session.receive(Cancel())  # the draft it waits for cannot come any more
        stream.end_if_finished()


def _unread(stream: Stream[S]) -> int:
    """Committed tokens the target has not seen."""
    return len(stream.session.ids) - stream.slot.length


def _rows(stream: Stream[S]) -> int:
    """New tokens of its next verdict, as far as is known."""
    block = stream.session.block
    return stream.verify_rows if block is None else 1 + len(block)


def _drafts(stream: Stream[S], now: float) -> bool:
    """Whether a draft may come at any moment."""
    is_drafting = stream.session.mode is not Mode.CLOUD and now - stream.think.answered_at < _ACTIVE_S
    return is_drafting and not stream.closed
