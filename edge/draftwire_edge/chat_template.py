"""From chat messages to prompt ids, the way transformers does it.

A chat template is a Jinja program that comes with the model; it is untrusted code and runs in Jinja's
sandbox. It is applied exactly once, and the prompt starts with exactly one BOS: the template's own if it
writes one, else ours if the model wants one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftwire_edge.tokenizer import Tokenizer
from draftwire_protocol.errors import UserInputError

#: ``{"role": ..., "content": ...}`` and whatever else the template reads.
Message: TypeAlias = Mapping[str, Any]


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's text for training; here a no-op."""

    tags = {"generation"}  # noqa: RUF012 - declared like this by jinja2.ext.Extension

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """``namespace()`` without private names, which could reach past the sandbox."""

    def __init__(self, /, *mappings: Any, **attributes: Any) -> None:
        attributes = dict(*mappings, **attributes)
        for name in attributes:
            _refuse_private(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if str(name).startswith("_"):
        raise jinja2.TemplateError(f"a namespace cannot hold the private name {name!r}")


def _new_dict(*args: Any, **items: Any) -> dict[Any, Any]:
    """``dict()`` as a plain function: the class itself would be a way out of the sandbox."""
    return dict(*args, **items)


def _raise_exception(message: str) -> NoReturn:
    """What a template calls when the messages break its rules."""
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """Local time now, for templates that tell the model the date."""
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    """Parse a template; chat templates are written for exactly these whitespace rules."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    bos_text: str,
    eos_text: str,
    add_generation_prompt: bool = True,
) -> str:
    """The text a template makes of some messages.

    Args:
        template: Jinja text.
        messages: oldest first, at least one; keys whose value is None are left out.
        bos_text, eos_text: what ``bos_token`` and ``eos_token`` stand for; "" when there is none.
        add_generation_prompt: end with the header of the assistant's answer.

    Raises:
        UserInputError: the template refuses the messages, or is itself broken.
    """
    if not messages:
        raise UserInputError("messages", "there are none", "Send at least one message")
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        return _compile(template).render(
            messages=plain,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_text,
            eos_token=eos_text,
        )
    except jinja2.TemplateSyntaxError as error:
        raise UserInputError(
            "chat template",
            f"line {error.lineno} is not valid Jinja ({error})",
            "Use the model's own template",
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserInputError(
            "messages", f"the model's chat template refuses them ({error})", "Check roles, order and contents"
        ) from error


def encode_chat(tokenizer: Tokenizer, template: str | None, messages: Sequence[Message]) -> list[int]:
    """Prompt ids of a chat, ending where the assistant's answer starts.

    Raises:
        UserInputError: there is no template, or it refuses the messages.
    """
    if not template:
        raise UserInputError(
            "messages", "the draft model has no chat template", "Use an instruct model, or a plain prompt"
        )
    bos_text = tokenizer.text_of(tokenizer.bos_id)
    text = render_chat(template, messages, bos_text=bos_text, eos_text=tokenizer.text_of(tokenizer.eos_id))
    return _encode_with_one_bos(tokenizer, text, bos_text)


def encode_raw(tokenizer: Tokenizer, text: str) -> list[int]:
    """Prompt ids of a plain text; written control tokens count as such."""
    return _encode_with_one_bos(tokenizer, text, tokenizer.text_of(tokenizer.bos_id))


def _encode_with_one_bos(tokenizer: Tokenizer, text: str, bos_text: str) -> list[int]:
    has_bos = bool(bos_text) and text.startswith(bos_text)
    return tokenizer.encode(text, add_special=not has_bos, parse_special=True)
