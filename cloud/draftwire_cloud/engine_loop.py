"""Drives the target: plan a step, run it on the one torch thread, answer, repeat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from draftwire_cloud.counts import EngineCounts, Refusal
from draftwire_cloud.engine.errors import LostRankError
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot, SlotStore
from draftwire_cloud.engine.target import Target
from draftwire_cloud.leases import LeaseCounts, Leases
from draftwire_cloud.scheduler import INBOX_MESSAGES, Job, Received, Scheduler, Stream
from draftwire_cloud.session import CloudSession, Vocabulary
from draftwire_protocol.errors import (
    CloudUnavailableError,
    DraftwireError,
    OverloadedError,
    StaleDraftError,
)
from draftwire_protocol.grammar import GrammarCompiler, GrammarState
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import CloudMessage, EdgeMessage, Open, Opened, ServerTiming, Verdict
from draftwire_protocol.sampling import Float32Array

_log = logging.getLogger(__name__)

#: Leases and silent streams are looked at this often at least, in seconds.
_TIDY_S = 0.25


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the operator allows."""

    #: Most streams open at once.
    max_sessions: int = 64
    #: Most sessions in one forward pass.
    max_batch: int = 32
    #: How long a silent session's KV is kept, in seconds.
    lease_s: float = 120.0
    #: Most tokens of a prompt fed in one step.
    prefill_chunk: int = 512
    #: How long a stream may wait for its edge, in seconds; the session can be resumed later.
    idle_s: float = 300.0
    #: Nobody new is let in while it takes longer than this to read the prompts that wait, in seconds.
    max_queue_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One stream's result of a step; exactly one of verdict and error, or neither mid-prompt."""

    stream: Stream[Slot]
    verdict: Verdict | None = None
    error: DraftwireError | None = None


class EngineLoop:
    """Owns the streams, the slots and the torch thread; all methods run on the event loop.

    Args:
        target: the target model.
        vocabulary: its tokens.
        limits: what the operator allows.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._limits = limits
        self._clock = clock
        self.counts = EngineCounts()
        self._grammars = GrammarCompiler(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids)
        self._leases = Leases(target.slots, limits.lease_s)
        self._scheduler: Scheduler[Slot] = Scheduler(limits.max_batch, limits.prefill_chunk)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="target")
        self._wake = asyncio.Event()
        self._taken_in = asyncio.Event()
        self._in_step: set[Stream[Slot]] = set()
        self._step_over = asyncio.Event()
        self._step_over.set()
        self._step_ended_at = 0.0
        #: Of the last step; None where it failed.
        self._forward_s: float | None = None

    @property
    def num_streams(self) -> int:
        """Streams open now."""
        return len(self._scheduler)

    @property
    def num_parked(self) -> int:
        """KV slots kept for sessions without a stream."""
        return self._leases.num_parked

    @property
    def lease_counts(self) -> LeaseCounts:
        """What became of prompts and slots."""
        return self._leases.counts

    @property
    def slots(self) -> SlotStore:
        """Where keys and values are kept."""
        return self._target.slots

    async def open(
        self, request: Open, send: Callable[[CloudMessage | DraftwireError], None], tenant: str = ""
    ) -> Stream[Slot]:
        """Start or resume a generation; a stream that is still open for the same session ends.

        Args:
            request: the Open message.
            send: called on the event loop with every answer, or with the error that ends the stream.
            tenant: whose session it is; turns are shared between tenants first.

        Raises:
            ContextOverflowError, ProtocolError, UserInputError: the request makes no sense.
            OverloadedError: no room for one more session.
        """
        session = CloudSession(
            request,
            self._vocabulary,
            self._target.facts.context_length,
            await self._compiled(request.grammar),
        )
        await self._supersede(request.session_id)
        if (n := self.num_streams) >= self._limits.max_sessions:
            raise self._refused("sessions", f"{n} sessions are open, the most this server allows")
        if (s := self._scheduler.reading_s) > self._limits.max_queue_s:
            raise self._refused("queue", f"reading the prompts that wait takes {s:.0f} s; try again later")
        now = self._clock()
        self._leases.expire(now)
        try:
            slot, cached = self._leases.take(request.session_id, session.ids, session.capacity)
        except OverloadedError as error:
            raise self._refused("memory", str(error)) from error
        stream = Stream(session, slot, cached, now, send, tenant, ready_at=now)
        self._scheduler.add(stream)
        self.counts.opened += 1
        self._wake.set()
        return stream

    def _refused(self, reason: Refusal, message: str) -> OverloadedError:
        """Count whom there is no room for."""
        self.counts.refused[reason] += 1
        return OverloadedError(message)

    async def _compiled(self, spec: GrammarSpec | None) -> GrammarState | None:
        """A request's constraint, off the event loop: the first one takes most of a second."""
        return None if spec is None else await asyncio.to_thread(self._grammars.compile, spec)

    async def _supersede(self, session_id: str) -> None:
        """Free the session's slot from an older stream, whose edge may have gone without a word."""
        while (old := self._holder(session_id)) is not None:
            old.end(StaleDraftError("another stream goes on with this session"))
            self.close(old)
            if old in self._in_step:
                await self._step_over.wait()

    def _holder(self, session_id: str) -> Stream[Slot] | None:
        """The stream that uses the session's slot."""
        streams = (*self._scheduler.streams, *self._in_step)
        return next((one for one in streams if one.session.request.session_id == session_id), None)

    async def deliver(self, stream: Stream[Slot], message: EdgeMessage) -> None:
        """Put a message of the edge into its stream's inbox; waits while that is full."""
        while len(stream.inbox) >= INBOX_MESSAGES and not stream.closed:
            self._taken_in.clear()
            await self._taken_in.wait()
        stream.inbox.append(Received(message, self._clock()))
        self._wake.set()

    def hang_up(self, stream: Stream[Slot]) -> None:
        """The edge will say nothing more; it may still listen."""
        stream.half_closed = True
        self._wake.set()

    def close(self, stream: Stream[Slot]) -> None:
        """The stream is over: keep its slot for a while, once no step uses it any more."""
        if stream.left:
            return
        stream.closed = stream.left = True
        self._scheduler.remove(stream)
        self.counts.closed += 1
        if stream not in self._in_step:
            self._park(stream)

    def _park(self, stream: Stream[Slot]) -> None:
        self._leases.park(stream.session.request.session_id, stream.slot, self._clock())

    async def run(self) -> None:
        """Serve steps until cancelled."""
        try:
            while True:
                # 1. Newcomers may find the beginning of their prompt with somebody else.
                self._share_beginnings()
                # 2. Choose whose tokens go in.
                step = self._scheduler.next_step(self._clock(), self._target.slots.free_tokens)
                self._taken_in.set()
                self._tidy()
                if not step.jobs:
                    # Nobody waits for the target: use the time, a little at once.
                    if not await self._prepare():
                        await self._something_new(step.wait_until)
                    continue
                # 3. Run them through the target, off the event loop.
                outcomes = await self._run_step(step.jobs)
                # 4. Answer; streams that vanished meanwhile give up their slots.
                for outcome in self._without_room(outcomes):
                    self._finish_job(outcome)
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)

    async def _prepare(self) -> bool:
        """Do a piece of the next verdicts ahead; whether there was one."""
        sessions = (stream.session for stream in self._scheduler.streams if not stream.closed)
        session = next((one for one in sessions if one.can_prepare), None)
        if session is None:
            return False
        await asyncio.get_running_loop().run_in_executor(self._thread, _try_to_prepare, session)
        return True

    def _tidy(self) -> None:
        """End leases, and streams whose edge has been silent for too long."""
        now = self._clock()
        self._leases.expire(now)
        for stream in self._scheduler.streams:
            silent_s = now - stream.ready_at
            if stream.session.waiting and silent_s >= self._limits.idle_s:
                stream.end(
                    CloudUnavailableError(f"no draft came for {silent_s:.0f} s; the session can be resumed")
                )
                self.close(stream)

    def _share_beginnings(self) -> None:
        for stream in self._scheduler.streams:
            if not stream.shared:
                stream.shared = True
                stream.cached = self._leases.share(stream.slot, stream.session.ids, stream.tenant)

    async def _something_new(self, until: float | None) -> None:
        """Wait for a message, a stream, the time named or the next look at the clock."""
        longest = _TIDY_S if until is None else min(max(until - self._clock(), 0.0), _TIDY_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._wake.wait()
        self._wake.clear()

    async def _run_step(self, batch: Sequence[Job[Slot]]) -> list[_Outcome]:
        self._in_step = {job.stream for job in batch}
        self._step_over.clear()
        lengths = [job.stream.slot.length for job in batch]
        try:
            outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._step, batch)
            self.counts.passed(batch, self._forward_s)
            for job in batch:
                job.stream.emptied = False
            if self._forward_s is not None:
                self._scheduler.observe(batch, lengths, self._forward_s)
            return outcomes
        finally:
            self._in_step = set()
            self._step_over.set()

    def _step(self, batch: Sequence[Job[Slot]]) -> list[_Outcome]:
        """One forward pass and its verdicts; runs on the torch thread."""
        started = self._clock()
        self._forward_s = None
        try:
            spans = [Span(job.stream.slot, job.work.ids, job.work.num_logits) for job in batch]
            logits = self._target.forward(spans)
            self._forward_s = forward_s = self._clock() - started
            return [
                self._judge(job, rows.numpy(), started, forward_s, len(batch))
                for job, rows in zip(batch, logits, strict=True)
            ]
        except LostRankError:
            raise  # every later step would fail too: the service ends
        except DraftwireError as error:
            return [_Outcome(job.stream, error=error) for job in batch]
        except Exception as error:  # noqa: BLE001  # whatever torch raises ends these streams, never the server
            _log.exception("a step failed")
            return [
                _Outcome(job.stream, error=DraftwireError(f"the target failed: {error}")) for job in batch
            ]
        finally:
            self._step_ended_at = self._clock()

    def _judge(
        self, job: Job[Slot], rows: Float32Array, started: float, forward_s: float, batch_size: int
    ) -> _Outcome:
        stream = job.stream
        if not job.work.num_logits:
            return _Outcome(stream)
        try:
            verdict = stream.session.apply(rows)
        except DraftwireError as error:
            return _Outcome(stream, error=error)  # its neighbours in the batch go on
        except Exception as error:  # noqa: BLE001  # whatever a text's judging raises ends that text alone
            _log.exception("a verdict failed")
            return _Outcome(stream, error=DraftwireError(f"the verdict failed: {error}"))
        finally:
            stream.slot.truncate(len(stream.session.ids) - 1)
        queue_s = max(0.0, min(started, self._step_ended_at) - stream.ready_at)
        now = self._clock()
        other_s = max(0.0, now - stream.ready_at - queue_s - forward_s)
        stream.ready_at = now
        timing = ServerTiming(_us(queue_s), _us(forward_s), _us(other_s), batch_size)
        return _Outcome(stream, replace(verdict, timing=timing))

    def _finish_job(self, outcome: _Outcome) -> None:
        stream = outcome.stream
        if stream.left:
            self._park(stream)
            return
        if outcome.error is not None:
            stream.end(outcome.error)
        if outcome.verdict is not None:
            self._answer(stream, outcome.verdict)

    def _without_room(self, outcomes: list[_Outcome]) -> list[_Outcome]:
        """Make room where a step did not fit; what it would have done is tried again.

        Returns:
            The outcomes to go on with.
        """
        failed = sorted(
            (one for one in outcomes if isinstance(one.error, OverloadedError)),
            key=lambda one: one.stream.opened_at,
        )
        if not failed:
            return outcomes
        # The slots were left as they were. When nothing can be dropped, who came last has to go.
        lost = [] if self._make_room(failed[0].stream) else [failed[-1]]
        retried = [replace(one, error=None) for one in failed if one not in lost]
        return [*(one for one in outcomes if one not in failed), *retried, *lost]

    def _make_room(self, stream: Stream[Slot]) -> bool:
        """Drop the slot of an ended stream, or else empty one of an open stream; False where none is left.

        The text of an emptied one stays, and its keys and values are built again when they fit: first go
        those that wait for their edge, the longest first, then those opened after this one.
        """
        if self._leases.drop_oldest():
            return True
        others = [one for one in self._scheduler.streams if one is not stream and one.slot.length]
        waiting = [one for one in others if one.session.waiting]
        later = [one for one in others if one.opened_at > stream.opened_at]
        if waiting:
            victim = min(waiting, key=lambda one: one.think.answered_at)
        elif later:
            victim = max(later, key=lambda one: one.opened_at)
        else:
            return False
        self._leases.empty(victim.slot)
        victim.emptied = True
        return True

    def _answer(self, stream: Stream[Slot], verdict: Verdict) -> None:
        first_s = None
        if not stream.first_verdict_sent:
            stream.first_verdict_sent = True
            first_s = self._clock() - stream.opened_at
            stream.send(Opened(stream.cached, _us(first_s)))
        advised = self._scheduler.advise(stream, verdict)
        stream.send(advised)
        self.counts.answered(advised, first_s, finished=stream.session.finished)
        self._scheduler.answered(stream, self._clock())
        self._leases.note(stream.slot, stream.tenant)
        stream.end_if_finished()


def _try_to_prepare(session: CloudSession) -> None:
    """One piece of a verdict ahead; runs on the torch thread. What fails here is the verdict's to report."""
    try:
        session.prepare()
    except Exception:  # noqa: BLE001  # whatever it raises, other texts go on
        _log.exception("preparing a verdict failed; this text goes on without")


def _us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * 1e6)
