"""Turns are fair, errors end one stream only, finished streams say so."""

from dataclasses import dataclass, field

import numpy as np

from draftwire_cloud.scheduler import Received, Scheduler, Stream
from draftwire_cloud.session import CloudSession, Vocabulary
from draftwire_cloud.step_cost import PassShape
from draftwire_protocol.errors import DraftwireError, ProtocolError
from draftwire_protocol.messages import Cancel, CloudMessage, Draft, Finished, Mode, Open, Verdict
from draftwire_protocol.params import SamplingParams

VOCABULARY = Vocabulary([b"x"] * 10, frozenset(), frozenset())


@dataclass(eq=False)
class Slot:
    ids: list[int] = field(default_factory=list)
    capacity: int = 100

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        del self.ids[length:]


def stream(mode: Mode = Mode.CLOUD) -> tuple[Stream[Slot], list[CloudMessage | DraftwireError]]:
    sent: list[CloudMessage | DraftwireError] = []
    session = CloudSession(Open("s", (1, 2), SamplingParams(), 50, mode), VOCABULARY, 100)
    return Stream(session, Slot(), 0, 0.0, sent.append), sent


def run(scheduler: Scheduler[Slot], steps: int) -> list[Stream[Slot]]:
    served = []
    for _ in range(steps):
        for one, work in scheduler.next_step().jobs:
            one.slot.ids.extend(work.ids)
            one.session.apply(np.zeros((work.num_logits, 10), np.float32))
            served.append(one)
    return served


def test_streams_take_turns() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    streams = [stream()[0] for _ in range(3)]
    for one in streams:
        scheduler.add(one)
    assert run(scheduler, 9) == streams * 3


def test_waiting_streams_are_passed_over() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    waiting, busy = stream(Mode.LOCKSTEP)[0], stream()[0]
    scheduler.add(waiting)
    scheduler.add(busy)
    assert run(scheduler, 4) == [waiting, busy, busy, busy]
    waiting.inbox.append(Received(Draft(0, 3, (0,)), 1.5))
    assert run(scheduler, 2) == [waiting, busy]
    assert waiting.ready_at == 1.5


def test_batches_are_as_large_as_allowed() -> None:
    scheduler: Scheduler[Slot] = Scheduler(max_batch=2)
    for _ in range(3):
        scheduler.add(stream()[0])
    assert [len(scheduler.next_step().jobs) for _ in range(3)] == [2, 2, 2]


def test_a_bad_message_ends_only_its_own_stream() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    (bad, sent), (good, _) = stream(), stream()
    scheduler.add(bad)
    scheduler.add(good)
    bad.inbox.append(Received(Draft(0, 3, (99,)), 0.0))
    assert run(scheduler, 3) == [good] * 3
    assert isinstance(sent[0], ProtocolError)


def test_whoever_is_wrong_or_done_hears_it_before_the_others_steps() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    (busy, _), (bad, refused), (done, finished) = stream(), stream(), stream()
    for one in (busy, bad, done):
        scheduler.add(one)
    bad.inbox.append(Received(Draft(0, 3, (99,)), 0.0))
    done.inbox.append(Received(Cancel(), 0.0))
    assert [job.stream for job in scheduler.next_step().jobs] == [busy]
    assert [type(message) for message in refused + finished] == [ProtocolError, Finished]


def test_an_edge_that_hung_up_is_not_waited_for() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    one, sent = stream(Mode.LOCKSTEP)
    scheduler.add(one)
    one.half_closed = True
    assert run(scheduler, 3) == [one]
    assert isinstance(sent[-1], Finished)


def test_a_finished_session_says_so_once() -> None:
    scheduler: Scheduler[Slot] = Scheduler()
    one, sent = stream()
    scheduler.add(one)
    one.inbox.append(Received(Cancel(), 0.0))
    assert run(scheduler, 3) == []
    assert [type(message) for message in sent] == [Finished]
    scheduler.remove(one)
    scheduler.remove(one)
    assert len(scheduler) == 0


def busy(count: int) -> tuple[Scheduler[Slot], list[Stream[Slot]]]:
    """Sessions in duplex behind their first token, on a service that knows what a pass takes."""
    scheduler: Scheduler[Slot] = Scheduler(32)
    streams = [stream(Mode.DUPLEX)[0] for _ in range(count)]
    for one in streams:
        scheduler.add(one)
    for turn in range(6):
        jobs = scheduler.next_step(float(turn)).jobs
        lengths = [job.stream.slot.length for job in jobs]
        for one, work in jobs:
            one.slot.ids.extend(work.ids)
            one.session.apply(np.zeros((work.num_logits, 10), np.float32))
            one.slot.truncate(len(one.session.ids) - 1)
            one.first_verdict_sent = True
            scheduler.answered(one, turn + 0.1)
        scheduler.observe(jobs, lengths, 0.05 + 0.01 * len(jobs))
    for rows in range(1, 40):
        scheduler.cost.observe(PassShape(rows, 0), 0.05 + 0.01 * rows)
    return scheduler, streams


def test_a_fill_that_waits_for_others_is_told_with_the_next_verdict_once() -> None:
    scheduler, (one, *others) = busy(3)
    for other in others:
        other.inbox.append(Received(Draft(0, len(other.session.ids), (0, 0)), 5.11))
    served = [job.stream for job in scheduler.next_step(5.12).jobs]
    assert one not in served
    verdict = Verdict(0, 3, 0, (1,), Mode.DUPLEX)
    assert scheduler.advise(one, verdict).fill_refused
    assert not scheduler.advise(one, verdict).fill_refused
    assert not scheduler.advise(others[0], verdict).fill_refused


def test_whoever_shares_a_pass_is_told_how_long_a_block_pays() -> None:
    verdict = Verdict(0, 3, 0, (1,), Mode.DUPLEX)
    alone, (one,) = busy(1)
    assert alone.advise(one, verdict).gamma_budget == 0
    together, streams = busy(8)
    together.next_step(9.0)
    most = together.advise(streams[0], verdict).gamma_budget
    # 8 tokens in 130 ms, 10 ms a row: 0.62 of a token a row; two of three drafted tokens are taken to stay.
    assert most == 1


def test_an_unlikely_block_is_cut_where_the_edge_says_so() -> None:
    scheduler, streams = busy(4)
    for chance, one in zip((255, 255, 255, 1), streams, strict=True):
        start = len(one.session.ids)
        one.inbox.append(Received(Draft(0, start, (0, 0, 0), (), bytes([chance] * 3)), 5.11))
    rows = {job.stream: job.work.num_logits for job in scheduler.next_step(9.0).jobs}
    assert [rows[one] for one in streams] == [4, 4, 4, 1]
