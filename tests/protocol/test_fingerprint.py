"""Vocabularies: equal ones match, and any difference is found at its first id."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol import fingerprint
from draftwire_protocol.fingerprint import CHUNK

PIECES = [f"t{i}".encode() for i in range(3 * CHUNK + 17)]


def first_difference(ours: list[bytes], theirs: list[bytes]) -> int | None:
    start = fingerprint.first_differing_run(fingerprint.piece_hashes(ours), fingerprint.piece_hashes(theirs))
    if start is None:
        return None
    at = fingerprint.first_differing_id(ours[start : start + CHUNK], theirs[start : start + CHUNK])
    return None if at is None else start + at


@given(st.integers(0, len(PIECES) - 1), st.integers(0, len(PIECES) - 1))
def test_first_changed_id_is_found(one: int, other: int) -> None:
    changed = list(PIECES)
    changed[one] = b"#"
    changed[other] = b"%"
    assert first_difference(PIECES, changed) == min(one, other)


@given(st.integers(0, len(PIECES) - 1))
def test_missing_ids_are_found(count: int) -> None:
    assert first_difference(PIECES, PIECES[:count]) == count
    assert first_difference(PIECES[:count], PIECES) == count


def test_equal_vocabularies_match() -> None:
    assert first_difference(PIECES, list(PIECES)) is None


def test_moving_bytes_between_ids_changes_the_hash() -> None:
    assert fingerprint.piece_hashes([b"ab", b"c"]) != fingerprint.piece_hashes([b"a", b"bc"])


def test_template_hash_tells_texts_apart_and_knows_none() -> None:
    assert fingerprint.template_hash("a") != fingerprint.template_hash("b")
    assert fingerprint.template_hash(None) == fingerprint.template_hash("") == b""
