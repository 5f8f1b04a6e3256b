"""Threads that work on parts of one matrix product at the same time."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import torch

Job = Callable[[], torch.Tensor]


class _Outcome(NamedTuple):
    """What became of a job: its result or its exception."""

    result: torch.Tensor | None
    error: BaseException | None


class _Worker:
    """One thread that does one job at a time. A daemon: it holds nothing that needs closing."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def start(self, job: Job) -> None:
        """Hand over a job."""
        self._jobs.put(job)

    def outcome(self) -> _Outcome:
        """Wait for the job handed over last."""
        return self._outcomes.get()

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                job = self._jobs.get()
                try:
                    self._outcomes.put(_Outcome(job(), None))
                except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                    self._outcomes.put(_Outcome(None, error))
                del job  # an idle worker must not keep weights alive


class Team:
    """Runs jobs on the caller's thread and ``n - 1`` others; queues cost 20-30 us a call.

    Only worth it for operations that release the interpreter lock. Not re-entrant: one caller at a time.

    Args:
        n: jobs that can run at once.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._workers = [_Worker(f"draftwire-gemm-{i}") for i in range(1, n)]

    def run(self, jobs: list[Job]) -> list[torch.Tensor]:
        """Do all jobs, at most ``n``, and return their results in order; the first error is raised."""
        others = list(zip(self._workers, jobs[1:], strict=False))
        for worker, job in others:
            worker.start(job)
        try:
            results = [jobs[0]()]
        finally:
            outcomes = [worker.outcome() for worker, _ in others]
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            if outcome.result is not None:
                results.append(outcome.result)
        return results
