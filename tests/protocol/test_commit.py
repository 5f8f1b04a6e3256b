"""The commit transaction: where a text ends, and what is shown of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol.commit import FinishReason, Transcript
from draftwire_protocol.errors import UserInputError

EOS = 3
ALPHABET = [b"a", b"b", b"\n", b"<eos>", b"ab", b"U", b"ser:", b"\xf0", b"\x9f", b"\x98", b"\x80", b"x\n\nU"]
IDS = st.lists(st.integers(0, len(ALPHABET) - 1), max_size=30)
STOPS = st.lists(st.sampled_from(["ab", "b\n", "\n\nUser:", "aa", "😀", "bab", "ba"]), max_size=3)


def transcript(stop: tuple[str, ...] | list[str] = (), max_tokens: int = 100) -> Transcript:
    return Transcript(ALPHABET, {EOS}, {EOS}, list(stop), max_tokens)


@given(IDS, STOPS, st.integers(1, 40), st.data())
def test_outcome_does_not_depend_on_block_boundaries(
    ids: list[int], stop: list[str], limit: int, data: st.DataObject
) -> None:
    whole = transcript(stop, limit)
    text = whole.commit(ids).text
    pieces = transcript(stop, limit)
    shown, rest = "", ids
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        shown += pieces.commit(rest[:cut]).text
        rest = rest[cut:]
    assert (pieces.ids, pieces.finish_reason, shown) == (whole.ids, whole.finish_reason, text)


@given(IDS, STOPS, st.permutations(range(3)))
def test_order_of_stop_strings_does_not_matter(ids: list[int], stop: list[str], order: list[int]) -> None:
    shuffled = [stop[i] for i in order if i < len(stop)]
    one, other = transcript(stop), transcript(shuffled)
    assert one.commit(ids) == other.commit(ids)


@given(IDS, STOPS, st.integers(1, 40))
def test_no_stop_string_and_no_broken_character_is_ever_shown(
    ids: list[int], stop: list[str], limit: int
) -> None:
    kept = transcript(stop, limit)
    text = kept.commit(ids).text
    assert not any(one in text for one in stop)
    raw = b"".join(ALPHABET[i] for i in kept.ids if i != EOS).decode(errors="replace")
    assert raw.startswith(text)
    assert len(kept.ids) <= limit


def test_eos_inside_a_block_ends_the_text_and_is_counted() -> None:
    kept = transcript().commit([0, EOS, 1])
    assert (kept.ids, kept.text, kept.finish_reason) == ([0, EOS], "a", FinishReason.STOP)


def test_stop_string_beats_max_tokens_met_later() -> None:
    kept = transcript(["U"], 5).commit([0, 1, 5, 0, 0, 0])
    assert (len(kept.ids), kept.text, kept.finish_reason) == (3, "ab", FinishReason.STOP)


def test_stop_string_across_blocks_is_cut_exactly_before_it() -> None:
    text = transcript(["\n\nUser:"])
    assert text.commit([0, 2]).text == "a"
    assert text.commit([2, 5]).text == ""
    last = text.commit([6, 0])
    assert (last.text, last.finish_reason, len(text.ids)) == ("", FinishReason.STOP, 5)


def test_half_a_stop_string_that_leads_nowhere_is_shown_after_all() -> None:
    text = transcript(["\n\nUser:"], 4)
    assert text.commit([0, 2, 2]).text == "a"
    assert text.commit([1]).text == "\n\nb"


def test_emoji_over_four_tokens_is_shown_once_and_whole() -> None:
    text = transcript()
    assert [text.commit([token]).text for token in (7, 8, 9, 10)] == ["", "", "", "😀"]


def test_emoji_cut_by_max_tokens_is_dropped_not_broken() -> None:
    kept = transcript(max_tokens=3).commit([0, 7, 8, 9])
    assert (kept.text, len(kept.ids), kept.finish_reason) == ("a", 3, FinishReason.LENGTH)


def test_earliest_position_wins_within_one_token() -> None:
    kept = transcript(["U", "x"]).commit([0, 11])
    assert kept.text == "a"


@pytest.mark.parametrize(
    ("stop", "limit", "named"),
    [
        ([""], 5, "--stop: .* empty"),
        (["ok", "\udcff"], 5, "--stop: .* UTF-8"),
        ([], 0, "--max-tokens: .* at least one"),
        ([], -3, "--max-tokens"),
        ([], 2**32, "--max-tokens: .* at most 4294967295"),
    ],
)
def test_senseless_limits_are_refused_by_name(stop: list[str], limit: int, named: str) -> None:
    with pytest.raises(UserInputError, match=named):
        transcript(stop, limit)


def test_the_largest_limit_of_the_wire_is_allowed() -> None:
    assert transcript(max_tokens=2**32 - 1).room == 2**32 - 1


def test_nothing_is_committed_after_the_end() -> None:
    text = transcript(max_tokens=1)
    text.commit([0])
    assert (text.room, text.commit([1, 1]).ids, text.ids) == (0, [], [0])
