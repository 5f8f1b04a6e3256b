"""A constraint as the user wrote it, and the same in llguidance's own language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from draftwire_protocol.errors import UserInputError

#: Longest constraint in characters; parsing time grows with it.
MAX_GRAMMAR_CHARS = 1 << 16
#: What JSON printers write between two values. Without a bound some models write blanks for ever.
_WHITESPACE = r"( |\r?\n[ \t]{0,64})"
_OPTIONS = {"json_schema": "--json-schema", "regex": "--regex"}
_FIXES = {
    "json_schema": 'Use a JSON Schema that stays within the supported keywords, e.g. {"type": "object"}',
    "regex": "Use a regular expression without look-around and backreferences, e.g. '[0-9]{4}-[0-9]{2}'",
}
#: What cannot stand in /.../ as it is, and escapes, which are looked at as a whole.
_SPECIAL = re.compile(r"\\.|[/\n]", re.DOTALL)
#: Keywords whose value is data, and those whose value maps names to schemas.
_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint as the user wrote it.

    Regular expressions are those of Rust's ``regex`` crate and must match the whole text; JSON Schemas
    are those of draft 2020-12, with properties written in the order in which the schema lists them.

    Args:
        kind: how to read ``text``.
        text: a JSON Schema or a regular expression.

    Raises:
        UserInputError: the text is too long, or a schema is no JSON. ``check_grammar`` looks further.
        ValueError: no such kind.
    """

    kind: Literal["json_schema", "regex"]
    text: str

    def __post_init__(self) -> None:
        if self.kind not in _OPTIONS:
            raise ValueError(f"no such kind of constraint: {self.kind!r}")
        if len(self.text) > MAX_GRAMMAR_CHARS:
            problem = f"{len(self.text)} characters are too many"
            raise UserInputError(self.option, problem, f"Use at most {MAX_GRAMMAR_CHARS}")
        source(self)

    @property
    def option(self) -> str:
        """The option that it was given with."""
        return _OPTIONS[self.kind]


def source(spec: GrammarSpec) -> str:
    """The constraint in llguidance's own language.

    Raises:
        UserInputError: what is wrong would be lost on the way, or a schema is no JSON.
    """
    rule = _json_rule(spec) if spec.kind == "json_schema" else _regex_rule(spec)
    # Otherwise text without a choice is allowed in one tokenization only, by a tokenizer we lack.
    return f'%llguidance {{"no_forcing": true}}\nstart: {rule}'


def _regex_rule(spec: GrammarSpec) -> str:
    """``/.../``, slashes and line ends escaped."""
    if not re.fullmatch(r"(?:\\?[^\\\ud800-\udfff]|\\\\)*", spec.text):
        raise refusal(spec, "it ends in a lone backslash, or is no Unicode")
    if "\n" in spec.text and re.search(r"\(\?[a-zA-Z]*x", spec.text):
        # A comment would go on past the line end, which cannot be written as one.
        raise refusal(spec, "flag x with more than one line is not supported")
    return f"/{re.sub(_SPECIAL, _escaped, spec.text)}/"


def _escaped(found: re.Match[str]) -> str:
    character = found[0][-1]
    return r"\n" if character == "\n" else rf"\{character}"


def _json_rule(spec: GrammarSpec) -> str:
    """``%json {...}``: the schema, with our options."""
    try:
        schema = json.loads(spec.text)
        schema = {} if schema is True else schema
        if not isinstance(schema, dict):
            raise refusal(spec, "it allows nothing" if schema is False else "it is no JSON object")
        for node in _nodes(schema):
            _refuse_unenforced(spec, node)
        options = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": _WHITESPACE}
        return f"%json {json.dumps({**schema, 'x-guidance': options})}"
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise refusal(spec, f"it is no JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise refusal(spec, "it is nested too deeply") from None


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and every schema in it."""
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            for key, value in node.items():
                if key in _NAMED and isinstance(value, dict):
                    waiting += value.values()
                elif key not in _DATA:
                    waiting.append(value)


def _refuse_unenforced(spec: GrammarSpec, node: dict[str, Any]) -> None:
    """Refuse what llguidance accepts and does not hold to."""
    least, required, step = node.get("minProperties"), node.get("required"), node.get("multipleOf")
    # Names that are not listed may be written twice, and count once then; one alone cannot.
    most = len(required) + 1 if isinstance(required, list) else 1
    if isinstance(least, int) and least > most:
        raise refusal(spec, f"minProperties {least} is not supported here, only up to {most}")
    if isinstance(step, int | float) and step <= 0:
        raise refusal(spec, f"multipleOf {step} is not above 0")
    if "x-guidance" in node:
        raise refusal(spec, "x-guidance is not supported")


def refusal(spec: GrammarSpec, problem: str) -> UserInputError:
    """An error that names the option, what is wrong, and what to give instead."""
    return UserInputError(spec.option, problem, _FIXES[spec.kind])


def reason(message: str) -> str:
    """The telling part of an llguidance message, which quotes our source around it, in one line."""
    lines = message.splitlines()
    if telling := next((line for line in lines if line.startswith("error: ")), None):
        return telling.removeprefix("error: ").rstrip(".")  # from the parser of regular expressions
    first = re.sub(r"^(WARNING: )?at \d+\(\d+\): ", "", lines[0] if lines else "")
    first = re.sub(r"^(failed to compile JSON schema: |invalid regex .* \(in regex\): )", "", first)
    if first.startswith("NoExtension"):
        return "no text of this model follows it"
    return first.partition(". Enable ")[0].rstrip(". ") or "it cannot be followed"
