"""The edge's loop: draft, send, wait, commit, show. Reads as numbered steps from prompt to screen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from uuid import uuid4

from draftwire_edge.branch import Branch, proposals_of
from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_edge.controller import Controller, Plan, Seen
from draftwire_edge.drafter import Drafter, Guess
from draftwire_edge.drafting import DrafterThread, Drafting, Guessed
from draftwire_edge.generation import (
    DoneEvent,
    Event,
    ExplainEvent,
    GenerationRequest,
    NoticeEvent,
    TokenEvent,
)
from draftwire_edge.mailbox import Arrival, Mailbox
from draftwire_edge.proposer import Proposer
from draftwire_edge.recorder import Recorder
from draftwire_edge.retry import Backoff, RetryPolicy
from draftwire_edge.run import Committed, Run
from draftwire_protocol.commit import Transcript
from draftwire_protocol.errors import CloudUnavailableError, OverloadedError, UserInputError
from draftwire_protocol.grammar import GrammarCompiler
from draftwire_protocol.messages import (
    Draft,
    Finished,
    Mode,
    ModelCard,
    Open,
    Opened,
    Scheme,
    SetMode,
    Verdict,
)

#: Tokens that the drafter reads in about the time of one.
_FEW_TOKENS = 4


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
        explain: yield an ExplainEvent after each verdict.
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
        *,
        explain: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._channel = channel
        self._card = card
        self._pieces = pieces
        self._drafter = None if drafter is None else DrafterThread(drafter, clock)
        self._controller = controller
        self._retry = retry or RetryPolicy()
        self._sharpness = sharpness
        self._explain = explain
        self._clock = clock
        self._grammars = GrammarCompiler(pieces, card.special_ids, card.eos_ids)
        self._session_id = uuid4().hex
        self._told_drafting_off = False

    async def aclose(self) -> None:
        """Free the drafter and its thread, once the drafter has finished what it is at."""
        await self._drop_drafter()

    async def _drop_drafter(self) -> None:
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            await drafter.close()

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
        return Run(request, transcript, proposer, Recorder(self._clock()), Branch(0, len(request.prompt_ids)))

    async def _stream(self, run: Run) -> AsyncIterator[Event]:
        """One Decode stream, from Open to Finished."""
        stream = self._channel.decode()
        mailbox = Mailbox(stream, self._clock)
        try:
            # 1. Open with everything committed so far; the drafter reads the prompt meanwhile.
            await self._open(run, stream)
            while run.finish_reason is None:
                # 2. Where it pays, let the drafter guess on; in lockstep only when it is our turn.
                await self._move(run, stream)
                # 3. Wait for the cloud or the drafter, whichever has something first.
                drafting = run.drafting
                arrival = await mailbox.message_or(None if drafting is None else drafting.guessed)
                # 4. Commit a verdict, learn from it, show it, and see how to go on.
                if arrival is not None:
                    for token in (tokens := self._take_in(run, arrival)):
                        yield token
                    if tokens:
                        # Showing them took the user's time, not ours; a cloud that fills did not wait for it.
                        run.since = arrival.at_s if run.mode.fills else self._clock()
                # 5. Send what was guessed, unless its branch has died.
                if drafting is not None and drafting.guessed.done():
                    await self._send_guesses(run, stream, drafting)
                while run.notices:
                    yield run.notices.pop(0)
        finally:
            run.recorder.bytes_up += stream.bytes_up
            run.recorder.bytes_down += stream.bytes_down
            stream.cancel()
            await mailbox.close()

    async def _open(self, run: Run, stream: DecodeStream) -> None:
        run.reopen(self._plan(run), self._clock())
        await stream.send(
            Open(
                session_id=self._session_id,
                prompt_ids=run.request.prompt_ids,
                committed_ids=tuple(run.transcript.ids),
                sampling=run.request.sampling,
                max_tokens=len(run.transcript.ids) + run.transcript.room,
                stop=run.request.stop,
                mode=run.mode,
                scheme=run.request.scheme,
                top_logprobs=run.request.top_logprobs,
                grammar=run.request.grammar,
                model_id=self._card.model_id,
            )
        )
        if run.mode is Mode.LOCKSTEP and self._drafter is not None:
            # Not awaited, so that the first token is shown as soon as it comes; a failure shows in drafting.
            self._drafter.read(run.ids)

    def _take_in(self, run: Run, arrival: Arrival) -> list[TokenEvent]:
        """What a message adds to the text."""
        match message := arrival.message:
            case Finished():
                run.ended = message.reason
            case Verdict() if message.start >= run.length:
                return self._commit(run, message, arrival.at_s)
            case Opened() if run.mode.fills:
                # Answered at once there; in lockstep perhaps only after the drafter's own work.
                round_trip_s = arrival.at_s - run.opened_at - message.prefill_us / 1e6
                run.recorder.round_trip(round_trip_s)
                self._controller.observe_round_trip(1e3 * round_trip_s)
            case Opened() | Verdict():
                pass  # or a repeated answer
        return []

    def _commit(self, run: Run, verdict: Verdict, arrived_at: float) -> list[TokenEvent]:
        """Commit a verdict and plan what comes after it."""
        started = self._clock()
        committed = run.commit(verdict, arrived_at)
        if run.drafting is not None and run.drafting.branch is not run.branch and self._drafter is not None:
            self._drafter.interrupt()  # its branch is dead, and the next one waits
        self._observe(run, verdict, committed, arrived_at)
        if run.mode is not run.asked_mode and verdict.mode is run.asked_mode:
            run.mode = run.asked_mode  # the cloud has heard of it, and waits for us now
        run.plan = self._plan(run)
        if self._explain:
            why = self._controller.explain(run.plan)
            shown = ExplainEvent(len(committed.tokens), verdict.num_drafted, verdict.num_accepted, why)
            run.notices.append(shown)
        run.recorder.edge_work(self._clock() - started)
        return committed.tokens

    def _observe(self, run: Run, verdict: Verdict, committed: Committed, arrived_at: float) -> None:
        """Give the controller and the recorder what this verdict showed."""
        count, judged = len(committed.tokens), verdict.num_drafted
        counted = judged if run.finish_reason is None else min(judged, count)
        run.recorder.verdict(verdict, counted, read_prompt=run.fresh)
        run.recorder.judged(committed.judged)
        if run.fresh:
            run.fresh = False
            return
        wait_s = None if committed.sent_at is None else arrived_at - committed.sent_at
        if wait_s is not None:
            run.recorder.round_trip(wait_s - verdict.timing.total_us / 1e6)
        self._controller.observe(
            Seen(
                mode=run.mode,
                tested=committed.judged,
                num_drafted=judged,
                committed=count,
                elapsed_ms=1e3 * max(0.0, arrived_at - run.since),
                forward_ms=verdict.timing.forward_us / 1e3,
                server_ms=verdict.timing.total_us / 1e3,
                wait_ms=None if wait_s is None else 1e3 * wait_s,
                queue_ms=verdict.timing.queue_us / 1e3,
                sent_bytes=committed.sent_bytes,
                gamma_budget=verdict.gamma_budget,
                fill_refused=verdict.fill_refused,
            )
        )

    def _plan(self, run: Run) -> Plan:
        if self._drafter is None:
            return Plan(Mode.CLOUD)
        by_equality = run.request.scheme is Scheme.COUPLED or run.request.sampling.greedy
        allowed = [mode for mode in self._card.modes if by_equality or not mode.drafts_on]
        plan = self._controller.plan(run.transcript.room - 1, allowed)
        return Plan(plan.mode, min(plan.limit, self._card.max_draft_tokens))

    async def _move(self, run: Run, stream: DecodeStream) -> None:
        """Change turns when the controller wants to; then draft on, ask for a token, or just listen."""
        await self._follow_mode(run, stream)
        if run.drafting is not None or run.mode is Mode.CLOUD or run.mode is not run.asked_mode:
            return
        if run.mode is Mode.LOCKSTEP and run.awaits_verdict:
            return
        limit = run.plan.limit - len(run.branch.guesses)
        if limit > 0 and not run.speechless and self._wants_guess(run.branch.guesses):
            self._start_drafting(run, limit)
        elif not run.awaits_verdict and not run.mode.fills:
            await self._send(run, stream)  # nothing to guess: ask for the target's own token

    async def _follow_mode(self, run: Run, stream: DecodeStream) -> None:
        """Tell the cloud of another mode; where it streams, it says itself when it begins to wait."""
        mode = run.plan.mode
        # One change at a time: the answer to the last one says where the cloud began to wait.
        if mode is run.asked_mode or run.mode is not run.asked_mode:
            return
        await stream.send(SetMode(mode))
        self._tell_mode(run, mode)
        run.asked_mode = mode
        if mode is not Mode.LOCKSTEP:
            run.mode = mode

    def _wants_guess(self, guesses: Sequence[Guess]) -> bool:
        """Whether a token after these is worth drafting; nothing comes after the end."""
        ended = guesses and guesses[-1].token in self._card.eos_ids
        return not ended and self._controller.want_more(guesses)

    def _start_drafting(self, run: Run, limit: int) -> None:
        """Let the drafter guess: a block in lockstep, elsewhere token by token, each sent as it comes."""
        if self._drafter is None:
            return
        in_block, behind = run.mode is Mode.LOCKSTEP, run.drafter_behind
        missed = run.length - run.drafter_read if behind else 0
        guessed = self._drafter.guess(
            [*run.ids, *run.branch.ids],
            run.proposer,
            limit,
            self._wants_guess if in_block else lambda _: False,
            reads_first=behind,
        )
        run.drafting = Drafting(run.branch, run.mode, guessed, missed)
        run.drafter_behind, run.drafter_read = False, run.length

    async def _send_guesses(self, run: Run, stream: DecodeStream, drafting: Drafting) -> None:
        """Add what was guessed to the branch and send it; ids that the target does not have end it."""
        run.drafting = None
        try:
            guessed = drafting.guessed.result()
        except Exception as error:  # noqa: BLE001  # whatever breaks the drafter must not break the text
            await self._give_up_drafting(run, error)
            return
        count = len(guessed.guesses)
        run.recorder.drafted(count, guessed.seconds, guessed.model_seconds)
        self._observe_draft(drafting, guessed)
        if run.mode is Mode.CLOUD:
            return  # nobody wants it any more
        if drafting.branch is not run.branch or run.finish_reason is not None:
            late = run.judge_late(drafting.branch, guessed.guesses)
            run.recorder.judged(late)
            self._controller.observe_late(late)
            return
        known = [0 <= guess.token < self._card.n_tokens for guess in guessed.guesses]
        room = self._card.max_draft_tokens - len(run.branch.guesses)
        fitting = guessed.guesses[: min(room, (*known, False).index(False))]
        run.branch.guesses += fitting
        run.speechless = len(fitting) < max(count, 1)
        if run.mode is not run.asked_mode:
            return
        if fitting or run.mode is Mode.LOCKSTEP:
            await self._send(run, stream)

    def _observe_draft(self, drafting: Drafting, guessed: Guessed) -> None:
        """Learn c_d, also from a guess that needed some reading first; a whole prompt says nothing of it."""
        seconds = guessed.seconds
        in_block = drafting.mode is Mode.LOCKSTEP
        if drafting.missed and not in_block:
            seconds += guessed.reading_seconds
        if drafting.missed <= _FEW_TOKENS or in_block:
            self._controller.observe_draft(len(guessed.guesses), 1e3 * seconds, drafting.mode)

    async def _send(self, run: Run, stream: DecodeStream) -> None:
        """Send what is unsent of the branch; nothing at all asks for one token of the target."""
        branch, started, bytes_before = run.branch, self._clock(), stream.bytes_up
        guesses = branch.unsent
        ids = tuple(guess.token for guess in guesses)
        proposals = proposals_of(guesses)
        chances = b"" if proposals else self._controller.chances(guesses)
        await stream.send(Draft(branch.epoch, branch.end - len(ids), ids, proposals, chances))
        num_bytes = stream.bytes_up - bytes_before
        run.sent_at, run.sent_bytes, run.awaits_verdict = started, num_bytes, True
        branch.sent(len(ids), started, num_bytes)
        if ids:
            run.recorder.sent_draft(num_bytes)
        run.recorder.edge_work(self._clock() - started)

    async def _give_up_drafting(self, run: Run, error: Exception) -> None:
        """The draft model broke: go on with the cloud alone, and say so."""
        with contextlib.suppress(Exception):
            await self._drop_drafter()
        run.plan = self._plan(run)
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
