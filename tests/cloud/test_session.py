"""The cloud's session against a scripted target: cases that broke other systems, and all their kind."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_cloud.session import CloudSession, Vocabulary
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import ContextOverflowError, ProtocolError, StaleDraftError
from draftwire_protocol.messages import Cancel, Draft, Mode, Open, SetMode, Verdict
from draftwire_protocol.params import SamplingParams

N_TOKENS, WIDTH = 30, 33
EOS, STOP = 2, 12
PIECES = [f"<{i}>".encode() for i in range(N_TOKENS)]
PIECES[STOP] = b"STOP"
VOCABULARY = Vocabulary(PIECES, frozenset({EOS}), frozenset({EOS}))
PROMPT = (5, 6, 7)


class Scripted:
    """A target that writes a fixed text; its padding ids always have the largest logit."""

    def __init__(self, script: list[int], *, context: int = 1000, **options: Any) -> None:
        self.script = script
        self.context = context
        fields: dict[str, Any] = {
            "max_tokens": 100,
            "mode": Mode.LOCKSTEP,
            "sampling": SamplingParams(),
        } | options
        self.session = CloudSession(Open("s", PROMPT, **fields), VOCABULARY, context)
        self.cached = 0

    def step(self) -> Verdict | None:
        """Run the work at hand; None when the session waits."""
        while (work := self.session.next_work(self.cached, most_read=4)) is not None:
            assert self.cached + len(work.ids) <= self.context
            self.cached += len(work.ids)
            if work.num_logits:
                rows = np.zeros((work.num_logits, WIDTH), np.float32)
                rows[:, N_TOKENS:] = 9.0
                base = len(self.session.ids) - len(PROMPT)
                for i in range(work.num_logits):
                    rows[i, self.script[base + i] if base + i < len(self.script) else 1] = 5.0
                verdict = self.session.apply(rows)
                self.cached = min(self.cached, len(self.session.ids) - 1)
                return verdict
        return None

    def draft(self, *ids: int, epoch: int | None = None, start: int | None = None) -> Verdict | None:
        at = len(self.session.ids) if start is None else start
        answers = self.session.receive(Draft(self.session.epoch if epoch is None else epoch, at, ids))
        if answers:
            assert isinstance(answers[0], Verdict)
            return answers[0]
        return self.step()

    @property
    def output(self) -> list[int]:
        return self.session.ids[len(PROMPT) :]

    @property
    def reason(self) -> FinishReason:
        return self.session.finish_message.reason


def test_eos_inside_an_accepted_block_ends_it_and_counts_what_was_kept() -> None:
    target = Scripted([4, 5, EOS, 7, 8])
    target.step()
    verdict = target.draft(5, EOS, 7)
    assert verdict is not None
    assert (target.output, verdict.num_accepted, verdict.ids) == ([4, 5, EOS], 2, ())
    usage = target.session.finish_message.usage
    assert (target.reason, usage.num_accepted_tokens, usage.num_draft_tokens) == (FinishReason.STOP, 2, 2)


def test_stop_before_max_tokens_is_stop_not_length() -> None:
    target = Scripted([10, 11, STOP, 20, 21, 22], max_tokens=5, stop=("STOP",))
    target.step()
    target.draft(11, STOP, 20, 21, 22, 23)
    assert (target.output, target.reason) == ([10, 11, STOP], FinishReason.STOP)


def test_one_token_is_one_token_whatever_gamma() -> None:
    target = Scripted([10, 11], max_tokens=1)
    target.step()
    assert (target.output, target.reason, target.session.finished) == ([10], FinishReason.LENGTH, True)


def test_blocks_never_reach_beyond_max_tokens() -> None:
    target = Scripted([10, 11, 12 + 1, 14, 15], max_tokens=3)
    target.step()
    assert target.session.receive(Draft(0, 4, (11, 13, 14, 15))) == []
    work = target.session.next_work(target.cached, most_read=4)
    assert work is not None
    assert len(work.ids) == 2
    target.step()
    assert target.output == [10, 11, 13]


def test_padding_ids_are_never_emitted_and_refused_in_drafts() -> None:
    target = Scripted([4, 5])
    target.step()
    with pytest.raises(ProtocolError, match="30"):
        target.draft(N_TOKENS)
    target.draft(5)
    assert target.output == [4, 5, 1]


@pytest.mark.parametrize("length", [3, 4, 5])
def test_context_edge(length: int) -> None:
    if length > 3:
        with pytest.raises(ContextOverflowError, match="3 tokens and the context"):
            Scripted([4], context=len(PROMPT) - (length - 4))
        return
    target = Scripted([4, 5, 6], context=len(PROMPT) + 1)
    target.step()
    assert (target.output, target.reason) == ([4], FinishReason.LENGTH)


def test_a_repeated_draft_gets_the_same_verdict_and_advances_once() -> None:
    target = Scripted([4, 5, 6, 7, 8])
    target.step()
    first = target.draft(5, 9)
    again = target.draft(5, 9, epoch=0, start=4)
    assert first == again
    assert target.output == [4, 5, 6]


def test_drafts_of_a_dead_branch_change_nothing() -> None:
    target = Scripted([4, 5, 6, 7, 8])
    target.step()
    target.draft(9)
    assert target.session.epoch == 1
    assert target.draft(6, epoch=0) is None
    assert target.draft(6, epoch=0, start=3) is None
    assert target.output == [4, 5]
    with pytest.raises(StaleDraftError):
        target.draft(6, start=50)
    target.draft(6)
    assert target.output == [4, 5, 6, 7]


def test_a_draft_behind_the_text_is_refused_unless_it_is_a_late_copy() -> None:
    target = Scripted([4, 5, 6, 7, 8, 9])
    target.step()
    target.draft(5)
    target.draft(7)
    assert target.draft(5, epoch=0, start=4) is None
    with pytest.raises(StaleDraftError, match="starts at 5, the text ends at 8"):
        target.draft(9, epoch=0, start=5)


def test_a_draft_overtaken_by_the_clouds_own_tokens_is_ignored() -> None:
    target = Scripted([4, 5, 6, 7, 8, 9])
    target.step()
    target.session.receive(SetMode(Mode.CLOUD))
    target.step()
    target.step()
    assert target.session.receive(Draft(0, 4, (5,))) == []
    assert target.output == [4, 5, 6]


def test_epochs_that_would_not_fit_the_wire_are_refused() -> None:
    target = Scripted([4, 5, 6, 7])
    target.step()
    assert target.draft(9, epoch=2**32 - 3) is not None
    assert target.session.epoch < 2**32
    with pytest.raises(ProtocolError, match="epoch 4294967294"):
        target.draft(6, epoch=2**32 - 2)


def test_cloud_mode_streams_until_told_to_wait() -> None:
    target = Scripted([4, 5, 6, 7, 8, 9, 10], mode=Mode.CLOUD)
    assert [target.step() for _ in range(3)][-1] is not None
    assert target.output == [4, 5, 6]
    target.session.receive(SetMode(Mode.LOCKSTEP))
    last = target.step()
    assert last is not None
    assert (last.mode, target.step()) == (Mode.LOCKSTEP, None)
    target.draft(8)
    assert target.output == [4, 5, 6, 7, 8, 9]
    target.session.receive(SetMode(Mode.CLOUD))
    assert target.step() is not None


def test_cancel_ends_it_before_another_step() -> None:
    target = Scripted([4, 5], mode=Mode.CLOUD)
    target.session.receive(Cancel())
    assert (target.step(), target.reason) == (None, FinishReason.CANCELLED)


def test_second_open_is_refused() -> None:
    target = Scripted([4])
    with pytest.raises(ProtocolError, match="second Open"):
        target.session.receive(target.session.request)


@given(
    st.lists(st.integers(3, 11), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(3, 11), max_size=6), max_size=60),
    st.integers(1, 30),
    st.integers(0, 40),
)
def test_output_is_the_targets_whatever_is_drafted(
    text: list[int], blocks: list[list[int]], limit: int, resumed: int
) -> None:
    script = [*text, EOS]
    expected = script[:limit]
    committed = tuple(expected[: min(resumed, len(expected) - 1)])
    target = Scripted(script, max_tokens=limit, committed_ids=committed)
    target.step()
    for block in blocks:
        if target.session.finished:
            break
        target.draft(*block)
    while not target.session.finished:
        target.draft()
    usage = target.session.finish_message.usage
    assert target.output == expected
    assert usage.completion_tokens == len(expected)
    assert usage.num_accepted_tokens <= usage.num_draft_tokens


def test_waiting_time_prepares_every_place_of_the_next_block_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Scripted([4, 5, 6, 7, 8, 9], sampling=SamplingParams(1e-6))
    prepared: list[int] = []
    monkeypatch.setattr(target.session._judge, "prepare", prepared.append)

    def prepare_all() -> list[int]:
        while target.session.can_prepare:
            target.session.prepare()
        return prepared

    assert prepare_all() == []  # the first token is still to be written
    target.step()
    for block in ((5, 6), (1,), (8,)):
        before = len(target.session.ids)
        assert prepare_all()[-1] == before + (0 if before == 4 else 2)
        target.draft(*block)
    # Each place once, though what follows a rejected token comes up again.
    assert prepared == sorted(set(prepared))


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(1.0, top_k=5)])
def test_nothing_is_prepared_where_noise_is_not_drawn_for_every_id(sampling: SamplingParams) -> None:
    target = Scripted([4, 5], sampling=sampling)
    target.step()
    assert target.session.waiting
    assert not target.session.can_prepare


def test_acceptance_is_of_the_tokens_that_were_tested_not_of_all_that_were_drafted() -> None:
    cloud = Scripted([3 + i % 7 for i in range(90)])
    cloud.step()
    for _ in range(12):
        at = len(cloud.session.ids) - len(PROMPT)
        right = cloud.script[at : at + 3]
        cloud.draft(*right, 1, 1, 1, 1)  # three of four tested ones stay, four more were never looked at
    assert cloud.session.acceptance == pytest.approx(0.75, abs=0.02)


def test_an_edge_that_promises_what_does_not_come_is_soon_not_believed() -> None:
    cloud = Scripted([3 + i % 7 for i in range(90)], mode=Mode.PIPELINED)
    cloud.step()
    for _ in range(10):
        start = len(cloud.session.ids)
        cloud.session.receive(Draft(cloud.session.epoch, start, (1,) * 8, (), b"\xff" * 8))
        before = cloud.session.survivals
        cloud.step()
    assert before[0] < 0.2
    assert before[-1] < 0.001


def test_a_block_that_came_before_the_mode_changed_is_still_judged() -> None:
    cloud = Scripted([3 + i % 7 for i in range(90)])
    cloud.step()
    start = len(cloud.session.ids)
    cloud.session.receive(Draft(0, start, tuple(cloud.script[1:5])))
    cloud.session.receive(SetMode(Mode.PIPELINED))
    assert len(cloud.session.survivals) == 4
    verdict = cloud.step()
    assert verdict is not None
    assert verdict.num_accepted == 4


def test_a_copy_of_a_draft_is_known_whatever_chances_come_with_it() -> None:
    cloud = Scripted([3 + i % 7 for i in range(90)])
    cloud.step()
    start, ids = len(cloud.session.ids), tuple(cloud.script[1:3])
    cloud.session.receive(Draft(0, start, ids, (), b"\x80\x80"))
    verdict = cloud.step()
    assert cloud.session.receive(Draft(0, start, ids, (), b"\x81\x80")) == [verdict]
