"""Masks against slow definitions: the replayed text, jsonschema, ``re.fullmatch``."""

import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validate  # type: ignore[import-untyped]

from draftwire_protocol import grammar, grammar_spec
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.grammar import GrammarCompiler, GrammarState
from draftwire_protocol.grammar_spec import GrammarSpec

#: Tokens across every border there is: of values, of escapes, in the middle of characters.
MERGES = (
    *(b'{"', b'":', b'", "', b'":"', b'"},', b"}]", b", ", b"\n  ", b"  ", b"\n", b"null", b"true"),
    *(b"12", b".5", b"e+", b"ab", b"aa", b"\\", b'\\"', b"\\u00"),
    *(b"\xc3\xa9", b"\xe2\x82", b'\xac"', b"\xf0\x9f", b"\x98\x80"),
)
WITHOUT_TEXT = (b"", b"\xff", b"ab", b"</s>", b"<|end|>", b"<pad>")
PIECES = [*(bytes([byte]) for byte in range(256)), *MERGES, *WITHOUT_TEXT]
N = len(PIECES)
EMPTY, MARKED, SPECIAL_AB, EOS, EOT, PAD = range(N - 6, N)
SPECIAL, ENDS = {SPECIAL_AB, PAD, EOT}, (EOS, EOT)  # an end need not be special
COMPILER = GrammarCompiler(PIECES, SPECIAL, ENDS)

SCHEMAS = [
    "true",
    """{"type": "object", "required": ["name", "n"], "additionalProperties": false, "properties": {
        "name": {"type": "string"}, "n": {"type": "integer", "minimum": -5, "maximum": 117},
        "tags": {"type": "array", "minItems": 1, "items": {"enum": ["x", "é", "a\\"b", {"q": [null]}]}}}}""",
    '{"type": "array", "items": {"type": "array", "items": {"type": ["number", "null"]}}, "maxItems": 3}',
    '{"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": {"type": "boolean"}}',
    '{"type": "number", "exclusiveMinimum": 0.25, "maximum": 1e3}',
    '{"type": "integer", "multipleOf": 7, "minimum": -30}',
    '{"type": "string", "minLength": 2, "maxLength": 4}',
    '{"type": "string", "pattern": "^[a-c]{2,4}é?$"}',
    r'{"type": "string", "pattern": "[\"\\/\n]"}',
    '{"const": {"z": [1, 2.5, "é\u2028", null, true], "": {}}}',
    '{"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2}',
    r'{"type": "object", "properties": {"e\"\n\\é": {"type": "null"}}, "required": ["e\"\n\\é"]}',
    """{"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "required": ["v"], "additionalProperties": false, "properties": {
        "v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}}""",
    """{"oneOf": [
        {"type": "object", "required": ["kind", "x"],
         "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}},
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "b"}}}]}""",
    # Names that are keywords elsewhere.
    """{"type": "object", "properties": {
        "minProperties": {"const": 9}, "multipleOf": {"enum": [-1]}, "const": {"type": "null"}}}""",
]
REGEXES = [
    *("a*", "", "ab", "(a|b)*abb", "b?(ab)+|a", "^ab?$", "x|^a$|b", "(a|ab)(b|ba)?", "[^b]b?", "(?x: a b )"),
    *("(?i)AB|b{2,3}", "/+a|b//", "a\nb|\\\n", "\\\\|a\\/b", '"[^"]*"', ".", "(?s:.)(?:a|b)", "[\\s/]{1,2}"),
]
UNSUPPORTED = (
    *("not", "if", "contains", "uniqueItems", "propertyNames", "dependencies", "dependentRequired"),
    *("dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
)


def json_spec(text: str) -> GrammarSpec:
    return GrammarSpec("json_schema", text)


def regex_spec(text: str) -> GrammarSpec:
    return GrammarSpec("regex", text)


SPECS = [*map(json_spec, SCHEMAS), *map(regex_spec, REGEXES), regex_spec("é+[^a]{0,3}|.*z")]


def taken(spec: GrammarSpec, tokens: list[int]) -> GrammarState:
    """The state after these tokens, from scratch."""
    state = COMPILER.compile(spec)
    assert all(state.advance(token) for token in tokens)
    return state


def ids_of(state: GrammarState) -> list[int]:
    return np.flatnonzero(state.allowed()).tolist()


def text_of(tokens: list[int]) -> str:
    return b"".join(PIECES[token] for token in tokens if token not in ENDS).decode()


def random_text(spec: GrammarSpec, rng: random.Random) -> str | None:
    """What a model without any sense writes; None when it does not come to an end."""
    state, tokens = COMPILER.compile(spec), []
    for _ in range(150):
        ids = ids_of(state)
        closing = [token for token in ids if PIECES[token] in {b'"', b"}", b"]", b"z"}]
        if state.can_end and rng.random() < 0.3:
            ids = list(ENDS)
        elif closing and rng.random() < 0.5:
            ids = closing
        tokens.append(rng.choice(ids))
        assert state.advance(tokens[-1])
        if tokens[-1] in ENDS:
            return text_of(tokens)
    return None


# --- the text ---


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_whatever_ends_parses_and_validates(schema: str) -> None:
    rng = random.Random(schema)
    texts = [text for _ in range(6) if (text := random_text(json_spec(schema), rng)) is not None]
    assert texts
    for text in texts:
        validate(json.loads(text), json.loads(schema), cls=Draft202012Validator)


@pytest.mark.parametrize("regex", REGEXES)
def test_a_text_may_end_exactly_where_the_expression_matches_all_of_it(regex: str) -> None:
    state = COMPILER.compile(regex_spec(regex))
    found = {text for text, ends in texts_from(state, 'ab/\n"\\', 3) if ends}
    every = map("".join, itertools.chain(*(itertools.product('ab/\n"\\', repeat=size) for size in range(4))))
    assert found == {text for text in every if re.fullmatch(regex, text)}


def texts_from(state: GrammarState, alphabet: str, size: int) -> Iterator[tuple[str, bool]]:
    """Every text of at most ``size`` characters that may be written, and whether it may end there."""
    yield "", state.can_end
    for character in alphabet if size else "":
        if state.advance(ord(character)):
            yield from ((character + rest, ends) for rest, ends in texts_from(state, alphabet, size - 1))
            state.rollback(1)


@pytest.mark.parametrize("regex", [*REGEXES, "é+[^a]{0,3}|.*z"])
def test_whatever_ends_matches(regex: str) -> None:
    rng = random.Random(regex)
    texts = [text for _ in range(6) if (text := random_text(regex_spec(regex), rng)) is not None]
    assert texts
    assert [text for text in texts if not re.fullmatch(regex, text)] == []


def test_a_character_may_be_cut_anywhere() -> None:
    spec = regex_spec("€😀")
    whole = "€😀".encode()
    for cut in ([b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80"], [bytes([byte]) for byte in whole]):
        state = taken(spec, [PIECES.index(piece) for piece in cut])
        assert state.finished
    assert not COMPILER.compile(spec).advance(PIECES.index(b"\xf0"))


def test_every_tokenization_is_allowed_even_of_text_without_a_choice() -> None:
    state = COMPILER.compile(regex_spec("ab"))
    assert ids_of(state) == [ord("a"), PIECES.index(b"ab")]


def test_blanks_are_bounded() -> None:
    state = COMPILER.compile(json_spec('{"type": "array"}'))
    assert state.advance(ord("["))
    assert state.advance(ord("\n"))
    blanks = 0
    while blanks < 100 and state.advance(ord(" ")):
        blanks += 1
    assert blanks == 64
    assert not state.advance(ord("\n"))
    assert state.advance(ord("]"))
    assert state.finished


# --- masks ---


@settings(max_examples=60)
@given(st.sampled_from(SPECS), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**32)), max_size=40))
def test_a_mask_depends_on_the_text_alone(spec: GrammarSpec, steps: list[tuple[int, int]]) -> None:
    state = COMPILER.compile(spec)
    tokens: list[int] = []
    for kind, number in steps:
        if kind < 3:
            count = number % (min(len(tokens), 6) + 1)
            state.rollback(count)
            del tokens[len(tokens) - count :]
        elif kind < 4:
            before = state.length
            refused = np.flatnonzero(~state.allowed())
            assert not len(refused) or not state.advance(int(refused[number % len(refused)]))
            assert state.length == before
        elif kind < 5:
            state = state.fork()
        else:
            ids = ids_of(state)
            tokens.append(ids[number % len(ids)])
            assert state.advance(tokens[-1])
    scratch = taken(spec, tokens)
    assert state.length == scratch.length == len(tokens)
    assert ids_of(state) == ids_of(scratch)
    assert (state.can_end, state.finished) == (scratch.can_end, scratch.finished)


@settings(max_examples=25)
@given(st.sampled_from(SPECS), st.integers(0, 2**32))
def test_a_mask_names_exactly_the_tokens_that_advance_takes(spec: GrammarSpec, seed: int) -> None:
    rng, state = random.Random(seed), COMPILER.compile(spec)
    for _ in range(rng.randrange(12)):
        state.advance(rng.choice(ids_of(state)))
    mask = state.allowed()
    for token in range(N):
        assert state.advance(token) == mask[token]
        state.rollback(int(mask[token]))
    assert ids_of(state) == np.flatnonzero(mask).tolist()


def test_forks_go_their_own_ways() -> None:
    one = taken(regex_spec("a(b|c)d"), [ord("a")])
    other = one.fork()
    assert one.advance(ord("b"))
    assert other.advance(ord("c"))
    other.rollback(2)
    assert ids_of(one) == [ord("d")]
    assert ids_of(other) == [ord("a"), PIECES.index(b"ab")]


def test_both_ends_build_the_same() -> None:
    other = GrammarCompiler(tuple(PIECES), list(SPECIAL), set(ENDS)).compile(SPECS[1])
    assert np.array_equal(other.bitmask(), COMPILER.compile(SPECS[1]).bitmask())


def test_the_same_mask_in_all_its_forms() -> None:
    state = COMPILER.compile(regex_spec("[a-f]+"))
    bits, mask = state.bitmask(), state.allowed()
    assert mask.shape == (N,)
    assert bits.shape == (-(-N // 32),)
    assert [bool(bits[i // 32] >> np.uint32(i % 32) & np.uint32(1)) for i in range(N)] == mask.tolist()
    logits = np.random.default_rng(0).normal(size=N).astype(np.float32)
    expected = np.where(mask, logits, np.float32(-np.inf))
    state.mask_logits(logits)
    assert np.array_equal(logits, expected)


def test_a_mask_stays_what_it_was() -> None:
    state = COMPILER.compile(regex_spec("ab"))
    bits, mask = state.bitmask(), state.allowed()
    kept = bits.copy(), mask.copy()
    with pytest.raises(ValueError, match="read-only"):
        bits[0] = 0
    mask[:] = True
    state.advance(ord("a"))
    state.mask_logits(np.zeros(N, np.float32))
    assert np.array_equal(bits, kept[0])
    state.rollback(1)
    assert np.array_equal(state.allowed(), kept[1])


def test_logits_of_another_kind_are_refused() -> None:
    state = COMPILER.compile(regex_spec("a"))
    others: list[Any] = [np.zeros(N + 1, np.float32), np.zeros((1, N), np.float32), np.zeros(N)]
    for logits in others:
        with pytest.raises(ValueError, match=f"float32 logits of {N} ids"):
            state.mask_logits(logits)


# --- ends and special ids ---


def test_every_end_is_allowed_exactly_where_the_text_may_end() -> None:
    state = COMPILER.compile(regex_spec("a?"))
    assert ids_of(state) == [ord("a"), *ENDS]
    assert (state.can_end, state.finished) == (True, False)
    state.advance(ord("a"))
    assert ids_of(state) == list(ENDS)
    assert (state.can_end, state.finished) == (True, True)
    assert not set(ENDS) & set(ids_of(COMPILER.compile(regex_spec("a"))))


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_taken_and_undone_like_any_token(end: int) -> None:
    state = taken(regex_spec("a{1,2}"), [ord("a")])
    before = ids_of(state)
    assert state.advance(end)
    assert (state.length, state.finished, state.can_end) == (2, True, True)
    assert not state.advance(ord("a"))
    assert ids_of(state) == list(ENDS)
    assert state.advance(EOS)
    assert state.advance(EOT)
    state.rollback(3)
    assert ids_of(state) == before
    assert state.advance(ord("a"))
    assert state.advance(end)
    state.rollback(3)
    assert state.length == 0
    assert not state.can_end


def test_an_early_end_changes_nothing() -> None:
    state = taken(regex_spec("ab"), [ord("a")])
    assert not state.advance(EOS)
    assert not state.advance(EOT)
    assert ids_of(state) == [ord("b")]


def test_ids_without_text_are_never_allowed() -> None:
    state = COMPILER.compile(regex_spec("(?s:.)*"))
    mask = state.allowed()
    for token in (EMPTY, MARKED, SPECIAL_AB, PAD, -1, N, 2**40):
        assert not 0 <= token < N or not mask[token]
        assert not state.advance(token)
    assert state.length == 0


def test_ends_among_the_padding_ids_are_left_out() -> None:
    state = GrammarCompiler(PIECES, SPECIAL, (EOS, N + 100)).compile(regex_spec(""))
    assert ids_of(state) == [EOS]


@pytest.mark.parametrize("count", [-1, 3])
def test_no_more_is_undone_than_was_taken(count: int) -> None:
    state = taken(regex_spec("a"), [ord("a"), EOS])
    with pytest.raises(ValueError, match=f"cannot undo {count} of 2 tokens"):
        state.rollback(count)
    assert state.length == 2


# --- refusals ---


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(", "unclosed group"),
        ("a{2,1}", "invalid repetition count"),
        ("a\\", "lone backslash"),
        ("a\udcff", "no Unicode"),
        ("a(?=b)", "look-around"),
        ("(a)\\1", "backreferences"),
        ("\\bword", "lookarounds not supported"),
        ("a^b", "lookarounds not supported"),
        ("a$b", "lookarounds not supported"),
        ("(?x)a # note\n b", "flag x"),
        ("[^\\s\\S]", "no text"),
        ("a" * (grammar_spec.MAX_GRAMMAR_CHARS + 1), "too many"),
    ],
)
def test_a_bad_expression_is_refused(text: str, problem: str) -> None:
    refused("regex", text, "--regex", problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON: .* at line 1, column 2"),
        ('{"minimum": NaN}', "expected value"),
        ("[]", "no JSON object"),
        ("false", "allows nothing"),
        ("[" * 30_000, "nested too deeply"),
        ('{"properties": {"a": ' * 99 + "1" + "}}" * 99, "recursion limit"),
        ('{"type": "text"}', "Invalid type"),
        ('{"required": "a"}', "Expected array"),
        ('{"enum": []}', "Unsatisfiable"),
        ('{"type": "integer", "minimum": 5, "maximum": 2}', "Unsatisfiable"),
        ('{"$ref": "#"}', "no text"),
        ('{"$ref": "http://a.b/c"}', "not present"),
        ('{"$ref": "#/$defs/a"}', "does not exist"),
        ('{"multipleOf": -2}', "multipleOf -2"),
        ('{"items": {"minProperties": 2}}', "minProperties 2 is not supported"),
        ('{"x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
        ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
        ('{"type": "string", "format": "regex"}', "Unknown format"),
        ('{"type": "string", "pattern": "(?=a)"}', "look-around"),
        *((f'{{"{keyword}": {{}}}}', keyword) for keyword in UNSUPPORTED),
    ],
)
def test_a_bad_or_unsupported_schema_is_refused(text: str, problem: str) -> None:
    refused("json_schema", text, "--json-schema", problem)


def refused(kind: Literal["json_schema", "regex"], text: str, option: str, problem: str) -> None:
    """With and without a vocabulary, in the same words, on one line."""
    messages = []
    for look in (grammar.check_grammar, COMPILER.compile):
        with pytest.raises(UserInputError, match=problem) as error:
            look(GrammarSpec(kind, text))
        assert error.value.argument == option
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    assert len(messages[0]) < 400


def test_what_compiles_passes_the_check() -> None:
    for spec in SPECS:
        grammar.check_grammar(spec)


def test_there_are_two_kinds() -> None:
    with pytest.raises(ValueError, match="no such kind"):
        GrammarSpec("lark", "start: /a/")  # type: ignore[arg-type]


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(UserInputError, match="--regex: this model has no id that ends a text"):
        GrammarCompiler(PIECES, SPECIAL, ()).compile(regex_spec("a"))


def test_a_vocabulary_that_lacks_the_bytes_is_refused_where_that_shows() -> None:
    compiler = GrammarCompiler([b"a", b"<end>"], (), (1,))
    with pytest.raises(UserInputError, match="--regex: no text of this model follows it"):
        compiler.compile(regex_spec("b"))
    state = compiler.compile(regex_spec("ab"))
    assert state.advance(0)
    with pytest.raises(UserInputError, match="no text of this model follows it"):
        state.bitmask()


def test_too_complex_a_text_stops_its_own_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "_MAX_LEXER_STATES", 300)
    spec = regex_spec("(a|b)*a(a|b){30}")

    def write(state: GrammarState) -> None:
        rng = random.Random(0)
        for _ in range(500):
            state.bitmask()
            state.advance(rng.choice(b"ab"))

    exhausted, other = COMPILER.compile(spec), COMPILER.compile(spec)
    with pytest.raises(UserInputError, match=r"--regex: .*too many states"):
        write(exhausted)
    assert other.advance(ord("a"))
    assert ord("b") in ids_of(other)


def test_the_parser_is_loaded_when_needed_only() -> None:
    script = (
        "import sys; from draftwire_protocol.grammar import *; GrammarSpec('regex', 'a'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "draftwire_protocol.grammar" in loaded
    assert "llguidance" not in loaded
