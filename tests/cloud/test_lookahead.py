"""Drafting on while verdicts are in flight: any interleaving of the two ends writes the target's text."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.test_session import PROMPT, Scripted
from draftwire_cloud.lookahead import Lookahead
from draftwire_edge.branch import Branch
from draftwire_edge.drafter import Guess
from draftwire_protocol.errors import ProtocolError, StaleDraftError
from draftwire_protocol.messages import Draft, Mode, SetMode, Verdict

SCRIPT = [3 + i % 7 for i in range(24)]
MOST = 20


class Ends:
    """A cloud and an edge with messages in flight both ways; the edge's guesses are given."""

    def __init__(self, mode: Mode, wrong: set[int]) -> None:
        self.cloud = Scripted(SCRIPT, mode=mode, max_tokens=MOST)
        self.mode, self.wrong = mode, wrong
        self.up: deque[Draft] = deque()
        self.down: deque[Verdict] = deque()
        self.text: list[int] = []
        self.branch = Branch(0, len(PROMPT))
        self.asked = True

    def guess(self, count: int = 1) -> None:
        """The edge drafts on."""
        for _ in range(count):
            at = self.branch.end - len(PROMPT)
            if len(self.branch.guesses) < 8 and at < MOST - 1:
                token = 1 if at in self.wrong else SCRIPT[at]
                self.up.append(Draft(self.branch.epoch, self.branch.end, (token,)))
                self.branch.guesses.append(Guess(token, 0.5))
                self.branch.sent(1, 0.0)

    def ask(self) -> None:
        """The edge has nothing to guess and nothing in flight."""
        if self.mode is Mode.PIPELINED and not self.branch.sent_at and not self.asked:
            self.up.append(Draft(self.branch.epoch, self.branch.end, ()))
            self.asked = True

    def deliver_up(self) -> None:
        if self.up:
            self.cloud.session.receive(self.up.popleft())

    def step(self) -> None:
        if (verdict := self.cloud.step()) is not None:
            self.down.append(verdict)

    def deliver_down(self) -> None:
        if not self.down:
            return
        verdict = self.down.popleft()
        assert verdict.start == len(PROMPT) + len(self.text)
        if verdict.num_accepted:
            assert verdict.epoch == self.branch.epoch
            assert verdict.num_accepted <= len(self.branch.sent_at)
        ids = [*self.branch.ids[: verdict.num_accepted], *verdict.ids]
        self.text += ids
        self.branch, _ = self.branch.commit(ids)
        self.asked = False


@given(
    st.sampled_from([Mode.PIPELINED, Mode.DUPLEX]),
    st.sets(st.integers(0, MOST), max_size=8),
    st.lists(st.sampled_from(["guess", "ask", "deliver_up", "step", "deliver_down"]), max_size=200),
)
def test_any_interleaving_writes_the_targets_text(mode: Mode, wrong: set[int], actions: list[str]) -> None:
    ends = Ends(mode, wrong)
    for action in actions:
        getattr(ends, action)()
    for _ in range(8 * MOST):  # whatever happened, a fair order finishes it
        for action in ("deliver_up", "step", "deliver_down", "guess", "ask"):
            getattr(ends, action)()
    assert ends.text == SCRIPT[:MOST]
    assert ends.cloud.session.finished


def test_drafts_that_overlap_what_the_cloud_passed_are_still_good() -> None:
    target = Scripted(SCRIPT, mode=Mode.DUPLEX)
    for _ in range(3):
        target.step()
    target.session.receive(Draft(0, len(PROMPT) + 1, tuple(SCRIPT[1:6])))
    verdict = target.step()
    assert verdict is not None
    assert (verdict.num_drafted, verdict.num_accepted) == (3, 3)
    assert target.output == SCRIPT[:7]


def test_a_dead_branch_costs_nothing_and_its_late_tokens_are_ignored() -> None:
    target = Scripted(SCRIPT, mode=Mode.DUPLEX)
    target.step()
    at = len(PROMPT) + 1
    target.session.receive(Draft(0, at, (1, *SCRIPT[2:5])))
    assert target.session.epoch == 0
    target.step()
    assert target.session.epoch == 1
    target.session.receive(Draft(0, at + 4, tuple(SCRIPT[5:7])))
    verdict = target.step()
    assert verdict is not None
    assert verdict.num_drafted == 0


def test_a_gap_is_refused_and_so_is_a_flood() -> None:
    lookahead = Lookahead()
    lookahead.receive(Draft(0, 5, (1, 2)), 5)
    for length in (5, 20):  # a hole is one, whatever the text has passed
        with pytest.raises(StaleDraftError, match="starts at 9"):
            lookahead.receive(Draft(0, 9, (1,)), length)
    for start in range(7, 257, 50):
        lookahead.receive(Draft(0, start, (1,) * 50), 5)
    with pytest.raises(ProtocolError, match="at most 256"):
        lookahead.receive(Draft(0, 257, (1,) * 50), 5)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_however_a_branch_is_cut_into_messages_it_is_the_same_branch(
    tokens: list[int], data: st.DataObject
) -> None:
    lookahead, at = Lookahead(), 0
    while at < len(tokens):
        begin = data.draw(st.integers(max(0, at - 3), at))  # copies of what was sent may come again
        at = data.draw(st.integers(at + 1, len(tokens)))
        lookahead.receive(Draft(0, 4 + begin, tuple(tokens[begin:at])), 4)
    assert lookahead.usable([9] * 4, 100) == tuple(tokens)


def test_pipelined_waits_for_drafts_and_answers_when_asked() -> None:
    target = Scripted(SCRIPT, mode=Mode.PIPELINED)
    target.step()
    assert target.step() is None
    target.session.receive(Draft(0, len(target.session.ids), ()))
    assert target.step() is not None
    assert target.step() is None


def test_leaving_for_lockstep_is_answered_once_in_lockstep() -> None:
    for mode in (Mode.PIPELINED, Mode.DUPLEX):
        target = Scripted(SCRIPT, mode=mode)
        target.step()
        target.session.receive(SetMode(Mode.LOCKSTEP))
        last = target.step()
        assert last is not None
        assert (last.mode, target.step()) == (Mode.LOCKSTEP, None)
