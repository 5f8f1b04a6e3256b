"""The edge's loop: draft, send, wait, commit, show. Reads as numbered steps from prompt to screen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from uuid import uuid4

from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_edge.controller import Controller, Plan, Round
from draftwire_edge.drafter import Drafter
from draftwire_edge.generation import DoneEvent, Event, GenerationRequest, NoticeEvent
from draftwire_edge.proposer import Proposer
from draftwire_edge.recorder import Recorder
from draftwire_edge.retry import Backoff, RetryPolicy
from draftwire_edge.run import Block, Run
from draftwire_protocol.commit import Transcript
from draftwire_protocol.errors import CloudUnavailableError, OverloadedError, UserInputError
from draftwire_protocol.grammar import GrammarCompiler
from draftwire_protocol.messages import Draft, Finished, Mode, ModelCard, Open, Opened, SetMode, Verdict

P = ParamSpec("P")
T = TypeVar("T")


class EdgeSession:
    """Writes texts with one cloud and one drafter, one text at a time.

    Args:
        channel: an open channel.
        card: of the target, already checked against the drafter's vocabulary.
        pieces: bytes of every real id.
        drafter: makes the guesses; None streams from the cloud alone.
        controller: chooses gamma and mode; shared by successive generations.
        retry: what to do when the connection breaks.
        sharpness: of the draft model's guesses, see ``Proposer``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        channel: CloudChannel,
        card: ModelCard,
        pieces: Sequence[bytes],
        drafter: Drafter | None,
        controller: Controller,
        retry: RetryPolicy | None = None,
        sharpness: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._channel = channel
        self._card = card
        self._pieces = pieces
        self._drafter = drafter
        self._controller = controller
        self._retry = retry or RetryPolicy()
        self._sharpness = sharpness
        self._clock = clock
        self._grammars = GrammarCompiler(pieces, card.special_ids, card.eos_ids)
        self._session_id = uuid4().hex
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")
        self._told_drafting_off = False

    async def aclose(self) -> None:
        """Free the drafter and its thread, once the drafter has finished what it is at."""
        try:
            await self._drop_drafter()
        finally:
            self._thread.shutdown(wait=False)

    async def _drop_drafter(self) -> None:
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            await self._on_drafter_thread(drafter.close)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Write one text; yields every committed token, then a DoneEvent.

        Raises:
            UserInputError: the prompt does not fit the context, or a limit makes no sense.
            CloudUnavailableError: the connection broke and did not come back within the deadline.
            DraftwireError: whatever else the cloud refuses, by its status.
        """
        run = await self._begin(request)
        backoff, failures = Backoff(self._retry), 0
        # 1. Stream until the text is finished; a broken connection is resumed where it stopped.
        while run.finish_reason is None:
            length = run.length
            try:
                async for event in self._stream(run):
                    yield event
            except (CloudUnavailableError, OverloadedError) as error:
                # A text not begun is refused at once when the cloud is full; one in the making waits.
                if isinstance(error, OverloadedError) and not run.transcript.ids:
                    raise
                if run.length > length:
                    backoff.reset()
                    failures = 0
                wait_s = backoff.next_wait_s(self._clock())
                if wait_s is None:
                    raise
                failures += 1
                # The first attempt to go on is quick; what takes longer is said.
                if failures == 2:
                    limit = f"for up to {self._retry.deadline_s:.0f} s"
                    yield NoticeEvent(f"the cloud is away, trying to go on {limit} ({error})")
                await asyncio.sleep(wait_s)
        # 2. Close with everything known about it.
        yield DoneEvent(run.result())

    async def _begin(self, request: GenerationRequest) -> Run:
        room = self._card.context_length - len(request.prompt_ids)
        if room < 1:
            raise UserInputError(
                "PROMPT",
                f"{len(request.prompt_ids)} tokens do not fit the context of {self._card.context_length}",
                f"Shorten it to at most {self._card.context_length - 1} tokens",
            )
        limit = min(request.max_tokens, room)
        card = self._card
        transcript = Transcript(self._pieces, card.special_ids, card.eos_ids, request.stop, limit)
        grammar = None
        if request.grammar is not None:
            # The first one takes most of a second.
            grammar = await asyncio.to_thread(self._grammars.compile, request.grammar)
        proposer = Proposer(
            request.sampling, request.scheme, len(request.prompt_ids), card.eos_ids, grammar, self._sharpness
        )
        return Run(request, transcript, proposer, Recorder(self._clock()))

    async def _stream(self, run: Run) -> AsyncIterator[Event]:
        """One Decode stream, from Open to Finished."""
        stream = self._channel.decode()
        try:
            # 1. Open with everything committed so far; the drafter reads the prompt meanwhile.
            opened_at = self._clock()
            await self._open(run, stream)
            block = Block()
            while True:
                # 2. Wait for the verdict on the block.
                sent_at = self._clock()
                verdict = await self._next_verdict(run, stream, opened_at)
                received_at = self._clock()
                if verdict is None:
                    return
                # 3. Commit it, learn from it, show it.
                tokens = run.commit(block, verdict, received_at)
                self._observe(run, block, verdict, received_at - sent_at)
                run.recorder.edge_work(self._clock() - received_at)
                for token in tokens:
                    yield token
                # 4. Draft the next block and send it; in cloud mode just listen on.
                if run.finish_reason is not None:
                    return
                block = await self._take_turn(run, stream, verdict)
                while run.notices:
                    yield run.notices.pop(0)
        finally:
            run.recorder.bytes_up += stream.bytes_up
            run.recorder.bytes_down += stream.bytes_down
            stream.cancel()

    async def _open(self, run: Run, stream: DecodeStream) -> None:
        mode = self._plan(run).mode
        run.asked_mode, run.filling, run.epoch = mode, mode is Mode.CLOUD, 0
        run.fresh = run.drafter_behind = True
        await stream.send(
            Open(
                session_id=self._session_id,
                prompt_ids=run.request.prompt_ids,
                committed_ids=tuple(run.transcript.ids),
                sampling=run.request.sampling,
                max_tokens=len(run.transcript.ids) + run.transcript.room,
                stop=run.request.stop,
                mode=mode,
                scheme=run.request.scheme,
                top_logprobs=run.request.top_logprobs,
                grammar=run.request.grammar,
                model_id=self._card.model_id,
            )
        )
        if mode is Mode.LOCKSTEP and self._drafter is not None:
            # Not awaited, so that the first token is shown as soon as it comes; a failure shows in _draft.
            reading = self._on_drafter_thread(self._drafter.prefill, run.ids)
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _next_verdict(self, run: Run, stream: DecodeStream, opened_at: float) -> Verdict | None:
        """The next verdict on uncommitted text; None when the text is finished."""
        while True:
            message = await stream.receive()
            match message:
                case Finished():
                    run.ended = message.reason
                    return None
                case Verdict() if message.start >= run.length:
                    return message
                case Opened() if run.filling:
                    run.recorder.round_trip(self._clock() - opened_at - message.prefill_us / 1e6)
                case Opened() | Verdict():
                    pass  # read late, after the drafter's own work; or a repeated answer

    def _observe(self, run: Run, block: Block, verdict: Verdict, wait_s: float) -> None:
        """Give the controller and the recorder what this round showed."""
        committed = verdict.num_accepted + len(verdict.ids)
        drafted = len(block.guesses)
        counted = drafted if run.finish_reason is None else min(drafted, committed)
        run.recorder.verdict(verdict, counted, read_prompt=run.fresh)
        forward_ms = verdict.timing.forward_us / 1e3
        if run.fresh:
            run.fresh = False
            return
        if run.filling:
            run.drafter_behind = True
            self._controller.observe_fill(forward_ms)
            return
        run.recorder.round_trip(wait_s - verdict.timing.total_us / 1e6)
        self._controller.observe_round(
            Round(
                guesses=block.guesses,
                accepted=verdict.num_accepted,
                committed=committed,
                draft_ms=1e3 * block.seconds,
                wait_ms=1e3 * wait_s,
                server_ms=verdict.timing.total_us / 1e3,
                forward_ms=forward_ms,
            )
        )

    async def _take_turn(self, run: Run, stream: DecodeStream, verdict: Verdict) -> Block:
        """Send the next block, or let the cloud stream; what is returned awaits its verdict."""
        # 1. Change turns when the controller wants to; the cloud may still be streaming then.
        plan = self._plan(run)
        if plan.mode is not run.asked_mode:
            await stream.send(SetMode(plan.mode))
            self._tell_mode(run, plan.mode)
            run.asked_mode = plan.mode
        run.filling = Mode.CLOUD in (plan.mode, verdict.mode)
        if run.filling:
            return Block()
        # 2. Draft.
        block = await self._draft(run, plan)
        # 3. Send.
        started, bytes_before = self._clock(), stream.bytes_up
        await stream.send(Draft(run.epoch, run.length, block.ids, block.proposals))
        if block.guesses:
            run.recorder.sent_draft(stream.bytes_up - bytes_before)
        run.recorder.edge_work(self._clock() - started)
        return block

    def _plan(self, run: Run) -> Plan:
        if self._drafter is None:
            return Plan(Mode.CLOUD)
        return self._controller.plan(run.transcript.room - 1)

    async def _draft(self, run: Run, plan: Plan) -> Block:
        """Let the drafter guess on its own thread; ids that the target does not have end the block."""
        limit = min(plan.limit, self._card.max_draft_tokens)
        drafter = self._drafter
        if drafter is None or limit < 1:
            return Block()
        try:
            # Reading what it missed is no part of the time to draft a token.
            if run.drafter_behind:
                await self._on_drafter_thread(drafter.prefill, run.ids)
                run.drafter_behind = False
            started, model_before = self._clock(), drafter.model_seconds
            guesses = await self._on_drafter_thread(
                drafter.draft, run.ids, run.proposer, limit, self._controller.want_more
            )
        except Exception as error:  # noqa: BLE001  # whatever breaks the drafter must not break the text
            await self._give_up_drafting(run, error)
            return Block()
        known = [guess.token < self._card.n_tokens for guess in guesses]
        block = Block(guesses[: (*known, False).index(False)], self._clock() - started)
        model_s = drafter.model_seconds - model_before
        run.recorder.drafted(len(block.guesses), block.seconds, model_s)
        return block

    def _on_drafter_thread(
        self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))

    async def _give_up_drafting(self, run: Run, error: Exception) -> None:
        """The draft model broke: go on with the cloud alone, and say so."""
        with contextlib.suppress(Exception):
            await self._drop_drafter()
        run.notices.append(NoticeEvent(f"speculation is off, streaming from the cloud alone: {error}"))

    def _tell_mode(self, run: Run, mode: Mode) -> None:
        """Say once when drafting does not pay."""
        if mode is not Mode.CLOUD or self._drafter is None or self._told_drafting_off:
            return
        self._told_drafting_off = True
        run.notices.append(
            NoticeEvent(
                f"drafting does not pay now (acceptance {self._controller.alpha:.2f}, round trip "
                f"{self._controller.rtt_ms:.0f} ms): streaming from the cloud alone, trying again later"
            )
        )
