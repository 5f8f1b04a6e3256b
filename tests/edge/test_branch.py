"""The edge's branch behind the text that is committed under it."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_edge.branch import Branch
from draftwire_edge.drafter import Guess

IDS = st.lists(st.integers(0, 2), max_size=8)


def branch_of(ids: list[int], sent: int) -> Branch:
    branch = Branch(3, 10, [Guess(token, 0.5) for token in ids])
    branch.sent(sent, 0.0)
    return branch


@given(IDS, st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 8))
def test_a_branch_lives_while_it_agrees_with_the_text(
    guesses: list[int], committed: list[int], sent: int
) -> None:
    sent = min(sent, len(guesses))
    before = branch_of(guesses, sent)
    after, judged = before.commit(committed)
    overlap = min(len(guesses), len(committed))
    agree = guesses[:overlap] == committed[:overlap]
    assert after.start == 10 + len(committed)
    lives = agree and sent >= len(committed)
    assert (after is before) == lives
    assert after.end - after.start == len(after.guesses)
    # A branch of which nothing was sent needs no other epoch: the cloud never heard of it.
    assert after.epoch == (3 if lives or not sent else 4)
    assert list(after.ids) == (guesses[len(committed) :] if agree else [])
    assert len(after.sent_bytes) == len(after.sent_at)
    assert len(after.sent_at) == (max(0, sent - len(committed)) if agree else 0)
    # Judged up to the first one that differs, and that one.
    assert [one.accepted for one in judged] == [True] * (len(judged) - (not agree)) + [False] * (not agree)
    assert [one.guess.token for one in judged] == guesses[: len(judged)]
