"""How much of a step over many sessions is Python around the target: scheduler, packing, judging.

    python benchmarks/step_parts.py FOLDER [--dtype float32] [--sessions 16] [--gamma 5] [--threads 2]

Scheduler, sessions, packing and target are the service's own; messages are put into the inboxes and no
socket or event loop is there. Every session drafts its own greedy text, so that every step has
sessions x (gamma + 1) rows. Parts inside others are taken out of them; "rest" is what no part claims.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Spinning OpenMP threads take the core that the next operation needs. Must be set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from draftwire_cloud.engine import target as target_module
from draftwire_cloud.engine.packing import Plan, Span
from draftwire_cloud.engine.slots import Slot, SlotStore
from draftwire_cloud.engine.target import Target
from draftwire_cloud.scheduler import Received, Scheduler, Stream
from draftwire_cloud.session import CloudSession, Vocabulary
from draftwire_protocol.messages import Draft, Mode, Open
from draftwire_protocol.params import SamplingParams

PROMPT, TOKENS, WARM_UP = 120, 72, 2


@dataclass
class Clock:
    """Seconds of each part of the step at hand, parts inside it left out."""

    parts: dict[str, float] = field(default_factory=dict)
    _inside: list[float] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        self._inside.append(0.0)
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.parts[name] = self.parts.get(name, 0.0) + took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def around(self, owner: Any, function: str, name: str) -> None:
        """Time every call of a function from now on."""
        original: Callable[..., Any] = getattr(owner, function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        setattr(owner, function, timed)


class Service:
    """What a service does between its sockets, one step after the other.

    Args:
        target: the model.
        texts: prompt and greedy answer of each session.
        clock: times the parts.
    """

    def __init__(self, target: Target, texts: Sequence[tuple[list[int], list[int]]], clock: Clock) -> None:
        self._target, self._texts, self._clock = target, texts, clock
        self._scheduler: Scheduler[Slot] = Scheduler(max_batch=len(texts), prefill_chunk=len(texts) * PROMPT)
        vocabulary = Vocabulary([b"x"] * target.facts.n_vocab, frozenset(), frozenset())
        self.streams: list[Stream[Slot]] = []
        for number, (prompt, answer) in enumerate(texts):
            request = Open(str(number), tuple(prompt), SamplingParams(), len(answer), Mode.LOCKSTEP)
            session = CloudSession(request, vocabulary, target.facts.context_length)
            stream = Stream(session, target.slots.open(session.capacity), 0, 0.0, lambda _: None)
            self.streams.append(stream)
            self._scheduler.add(stream)

    @property
    def reading(self) -> bool:
        """Whether a prompt is not read yet."""
        return any(len(stream.session.ids) == PROMPT for stream in self.streams)

    def draft(self, gamma: int) -> bool:
        """Put a block into every inbox; False when the texts have no room for whole ones any more."""
        for stream, (prompt, answer) in zip(self.streams, self._texts, strict=True):
            written = len(stream.session.ids) - len(prompt)
            if written + gamma + 1 > len(answer):
                return False
            block = tuple(answer[written : written + gamma])
            message = Draft(stream.session.epoch, len(stream.session.ids), block)
            stream.inbox.append(Received(message, time.perf_counter()))
        return True

    def step(self) -> int:
        """One step; how many tokens went through the target."""
        part = self._clock.part
        with part("scheduler: next_step"):
            jobs = self._scheduler.next_step(time.perf_counter(), self._target.slots.free_tokens).jobs
        lengths = [job.stream.slot.length for job in jobs]
        started = time.perf_counter()
        with part("forward pass"):
            logits = self._target.forward([Span(j.stream.slot, j.work.ids, j.work.num_logits) for j in jobs])
        forward_s = time.perf_counter() - started
        for job, rows in zip(jobs, logits, strict=True):
            if job.work.num_logits:
                with part("session: apply, judge"):
                    job.stream.session.apply(rows.numpy())
                job.stream.slot.truncate(len(job.stream.session.ids) - 1)
        with part("scheduler: observe"):
            self._scheduler.observe(jobs, lengths, forward_s)
        return sum(len(job.work.ids) for job in jobs)

    def close(self) -> None:
        """Give the slots back."""
        for stream in self.streams:
            self._target.slots.release(stream.slot)


def write(target: Target, n_sessions: int) -> list[tuple[list[int], list[int]]]:
    """Prompts of random ids, and what the target goes on with."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, target.facts.n_vocab, size=(n_sessions, PROMPT)).tolist()
    slots = [target.slots.open(PROMPT + TOKENS) for _ in prompts]
    fed, answers = prompts, [list[int]() for _ in prompts]
    for _ in range(TOKENS):
        logits = target.forward([Span(slot, ids, 1) for slot, ids in zip(slots, fed, strict=True)])
        fed = [[int(rows[0].argmax())] for rows in logits]
        for answer, ids in zip(answers, fed, strict=True):
            answer.extend(ids)
    for slot in slots:
        target.slots.release(slot)
    return list(zip(prompts, answers, strict=True))


def measure(target: Target, n_sessions: int, gamma: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each part, step by step."""
    texts, clock, found = write(target, n_sessions), Clock(), []
    clock.around(target_module, "make_plan", "packing: make_plan")
    clock.around(Plan, "bias", "packing: masks")
    clock.around(SlotStore, "reserve", "slots: reserve")
    for _ in range(rounds):
        service = Service(target, texts, clock)
        while service.reading:
            service.step()
        while service.draft(gamma):
            clock.parts.clear()
            with clock.part("rest"):
                rows = service.step()
            if rows != n_sessions * (gamma + 1):
                raise RuntimeError(f"a step of {rows} rows, not of {n_sessions} x {gamma + 1}")
            found.append(dict(clock.parts))
        service.close()
    return found[WARM_UP:]


def main() -> None:
    """Measure one folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="float32")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    target = Target.load(args.folder, dtype=args.dtype, threads=args.threads)
    steps = measure(target, args.sessions, args.gamma, args.rounds)
    total = statistics.median(sum(step.values()) for step in steps)
    print(
        f"{target.facts.architecture} {target.facts.dtype}, {args.sessions} sessions x {args.gamma + 1} rows"
    )
    print(f"{len(steps)} steps, median {1e3 * total:.1f} ms")
    around = 0.0
    for name in sorted({name for step in steps for name in step}):
        median = statistics.median(step.get(name, 0.0) for step in steps)
        around += 0.0 if name == "forward pass" else median
        print(f"  {name:24s} {1e3 * median:8.2f} ms {100 * median / total:6.2f} %")
    print(f"  all but the forward pass {1e3 * around:8.2f} ms {100 * around / total:6.2f} %")


if __name__ == "__main__":
    main()
