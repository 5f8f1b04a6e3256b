"""The drafter on its own thread, so that the event loop goes on while it guesses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from draftwire_edge.branch import Branch
from draftwire_edge.completion import completed
from draftwire_edge.drafter import Drafter, Guess, Interruptible, WantMore
from draftwire_edge.proposer import Proposer
from draftwire_protocol.messages import Mode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Guessed:
    """Guesses, and the seconds they took: in all, inside the model, and to read what came before."""

    guesses: list[Guess]
    seconds: float
    model_seconds: float
    reading_seconds: float


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the drafter is at."""

    branch: Branch
    #: That it was begun in; verdicts may change it meanwhile.
    mode: Mode
    guessed: asyncio.Future[Guessed]
    #: Tokens that it reads first; a few cost no more than one, since they go in together.
    missed: int


class DrafterThread:
    """Runs one drafter, one call after the other.

    Args:
        drafter: owned from now on.
        clock: monotonic seconds.
    """

    def __init__(self, drafter: Drafter, clock: Callable[[], float]) -> None:
        self._drafter = drafter
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")

    def read(self, context: Sequence[int]) -> asyncio.Future[None]:
        """Take in a context before it is needed."""
        return self._start(lambda: self._drafter.prefill(context))

    def guess(
        self,
        context: Sequence[int],
        proposer: Proposer,
        limit: int,
        want_more: WantMore,
        *,
        reads_first: bool,
    ) -> asyncio.Future[Guessed]:
        """Guess up to ``limit`` tokens after ``context``.

        Args:
            context: prompt, committed output and the guesses so far.
            proposer: turns logits into guesses.
            limit: most guesses, >= 1.
            want_more: asked after each guess but the last, on the drafter's thread.
            reads_first: there is more to read than the last guess; that is no part of the time to draft.
        """
        drafter, clock = self._drafter, self._clock

        def work() -> Guessed:
            begun = clock()
            if reads_first:
                drafter.prefill(context)
            started, model_before = clock(), drafter.model_seconds
            guesses = drafter.draft(context, proposer, limit, want_more)
            model_seconds = drafter.model_seconds - model_before
            return Guessed(guesses, clock() - started, model_seconds, started - begun)

        return self._start(work)

    def interrupt(self) -> None:
        """Let the draft at hand end early, where the drafter can: nobody wants it any more."""
        if isinstance(self._drafter, Interruptible):
            self._drafter.interrupt()

    def _start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # Nobody may be left to ask when the text ends first; who does ask still gets the error.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def close(self) -> None:
        """Free the drafter, once it has finished what it is at."""
        self.interrupt()
        try:
            await completed(self._start(self._drafter.close))
        finally:
            self._thread.shutdown(wait=False)
