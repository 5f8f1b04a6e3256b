"""What a verdict does to a text in the making, and what may not be believed of a cloud."""

import pytest

from draftwire_edge.branch import Branch, Judged
from draftwire_edge.drafter import Guess
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.proposer import Proposer
from draftwire_edge.recorder import Recorder
from draftwire_edge.run import Run
from draftwire_protocol.commit import Transcript
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.messages import Mode, Verdict
from draftwire_protocol.params import SamplingParams

PROMPT = (1, 2, 3)
PIECES = [bytes([97 + token]) for token in range(20)]


def running(mode: Mode = Mode.DUPLEX) -> Run:
    request = GenerationRequest(PROMPT, max_tokens=30)
    transcript = Transcript(PIECES, frozenset(), frozenset(), (), 30)
    run = Run(request, transcript, Proposer(SamplingParams()), Recorder(0.0), Branch(0, 3), mode=mode)
    run.asked_mode = mode
    return run


def draft(run: Run, *tokens: int, sent: int | None = None) -> None:
    run.branch.guesses += [Guess(token, 0.5) for token in tokens]
    count = len(tokens) if sent is None else sent
    for _ in range(count):
        at = len(run.branch.sent_at)
        run.branch.sent(1, 10.0 + at, 20 + at)


def test_tokens_say_where_they_came_from_and_when_they_had_been_sent() -> None:
    run = running()
    draft(run, 4, 5, 6)
    committed = run.commit(Verdict(0, 3, 2, (9,), Mode.DUPLEX, num_drafted=2), now=20.0)
    assert [token.source for token in committed.tokens] == ["draft", "draft", "target"]
    assert [one.accepted for one in committed.judged] == [True, True, False]
    assert (committed.sent_at, committed.sent_bytes) == (11.0, 21)
    assert (run.branch.epoch, run.branch.start, run.awaits_verdict) == (1, 6, False)
    committed = run.commit(Verdict(1, 6, 0, (7,), Mode.DUPLEX), now=21.0)
    assert [token.source for token in committed.tokens] == ["fill"]
    assert (committed.sent_at, committed.sent_bytes) == (None, 0)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(0, 4, 0, (9,), Mode.DUPLEX),  # a gap
        Verdict(0, 3, 3, (9,), Mode.DUPLEX, num_drafted=3),  # more than was sent
        Verdict(1, 3, 1, (9,), Mode.DUPLEX, num_drafted=1),  # of a branch that never was
    ],
)
def test_a_verdict_that_fits_nothing_is_refused(verdict: Verdict) -> None:
    run = running()
    draft(run, 4, 5, 6, sent=2)
    with pytest.raises(ProtocolError, match="does not fit"):
        run.commit(verdict, now=0.0)


def test_a_guess_that_comes_late_is_judged_by_the_text_if_all_before_it_were_right() -> None:
    run = running()
    draft(run, 4)
    old = run.branch
    run.commit(Verdict(0, 3, 1, (5, 6), Mode.DUPLEX, num_drafted=1), now=0.0)
    assert run.branch is not old
    for token, accepted in ((5, True), (8, False)):
        guess = Guess(token, 0.5)
        assert run.judge_late(old, [guess]) == [Judged(guess, accepted=accepted)]
    assert run.judge_late(old, []) == []
    assert run.judge_late(run.branch, [Guess(5, 0.5)]) == []  # the text has not come so far


def test_what_follows_a_wrong_guess_says_nothing() -> None:
    run = running()
    draft(run, 8)
    old = run.branch
    run.commit(Verdict(0, 3, 0, (5, 6), Mode.DUPLEX), now=0.0)
    assert run.judge_late(old, [Guess(6, 0.5)]) == []


@pytest.mark.parametrize("num_drafted", [0, 65, 200_000_000, 2**32 - 1])
def test_a_cloud_that_says_it_judged_nonsense_is_refused(num_drafted: int) -> None:
    run = running()
    draft(run, 4, 5)
    with pytest.raises(ProtocolError, match="keeps 1 of"):
        run.commit(Verdict(0, 3, 1, (9,), Mode.DUPLEX, num_drafted=num_drafted), now=0.0)
