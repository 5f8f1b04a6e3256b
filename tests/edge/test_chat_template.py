"""Chat templates: the same text and the same ids as transformers, and exactly one BOS."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from draftwire_edge.chat_template import encode_chat, encode_raw, render_chat
from draftwire_edge.tokenizer import GgufTokenizer
from draftwire_models import ModelCache
from draftwire_models.pairs import QWEN25_CODER_05B
from draftwire_protocol.errors import UserInputError
from tiny import TinyPair, make_tiny_pair, vocabulary

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  the in\n\nthere?  "},
    {"role": "assistant", "content": "é 😀", "tool_calls": None},
    {"role": "user", "content": "<|im_end|> is a token"},
]

TEMPLATES = [
    vocabulary.CHAT_TEMPLATE,
    """{{ bos_token }}{% for m in messages %}
    {% if m.role == 'user' %}
U:{{ m.content | trim }}
    {% endif %}
{% endfor %}{{ eos_token }}""",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
    """{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}
{% if add_generation_prompt %}>{% endif %}""",
    "{{ messages | tojson(indent=2) }}{{ tools is none }}{{ unknown_name }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ strftime_now('%Y') }}{{ 'tool_calls' in messages[2] }}",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), noise=(0.0,))


@pytest.fixture(scope="module")
def reference(pair: TinyPair) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pair.target_folder)


@pytest.fixture(scope="module")
def tokenizer(pair: TinyPair) -> GgufTokenizer:
    return GgufTokenizer.from_file(pair.drafters["perfect"])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_text_is_that_of_transformers(reference: Any, template: str, prompt: bool) -> None:
    theirs = reference.apply_chat_template(
        CHAT, chat_template=template, add_generation_prompt=prompt, tokenize=False
    )
    ours = render_chat(template, CHAT, bos_text="", eos_text=vocabulary.IM_END, add_generation_prompt=prompt)
    assert ours == theirs


def test_ids_are_those_of_transformers(reference: Any, tokenizer: GgufTokenizer) -> None:
    for length in range(1, len(CHAT) + 1):
        theirs = reference.apply_chat_template(CHAT[:length], add_generation_prompt=True)["input_ids"]
        assert encode_chat(tokenizer, tokenizer.chat_template, CHAT[:length]) == theirs


def test_raw_text_is_that_of_transformers(reference: Any, tokenizer: GgufTokenizer) -> None:
    for text in ("the in", "<|im_start|>x", ""):
        assert encode_raw(tokenizer, text) == reference(text)["input_ids"]


@dataclass
class BosTokenizer:
    """A tokenizer of characters whose model may want a BOS, written "<s>"."""

    add_bos: bool
    bos_id: int = 1
    eos_id: int = 2
    specials: dict[int, str] = field(default_factory=lambda: {1: "<s>", 2: "</s>"})

    def text_of(self, token: int | None) -> str:
        return self.specials[token] if token else ""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert parse_special
        start = [self.bos_id] if add_special and self.add_bos else []
        return start + [ord(character) for character in text.replace("<s>", "\x01").replace("</s>", "\x02")]


@pytest.mark.parametrize(
    ("template", "add_bos", "expected"),
    [
        ("{{ bos_token }}x", True, [1, ord("x")]),
        ("{{ bos_token }}x", False, [1, ord("x")]),
        ("x", True, [1, ord("x")]),
        ("x", False, [ord("x")]),
        ("{{ bos_token }}x{{ bos_token }}", True, [1, ord("x"), 1]),
    ],
)
def test_exactly_one_bos(template: str, add_bos: bool, expected: list[int]) -> None:
    tokenizer = cast("GgufTokenizer", BosTokenizer(add_bos))
    assert encode_chat(tokenizer, template, CHAT) == expected


def test_raw_text_with_its_own_bos_gets_no_second() -> None:
    tokenizer = cast("GgufTokenizer", BosTokenizer(add_bos=True))
    assert encode_raw(tokenizer, "<s>x") == encode_raw(tokenizer, "x") == [1, ord("x")]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", CHAT, "roles must alternate"),
        ("{{ messages[0].content + 1 }}", CHAT, "refuses them"),
        ("{{ messages[9].content.x }}", CHAT, "refuses them"),
        ("{% for %}", CHAT, "line 1 is not valid Jinja"),
        ("x", [], "at least one message"),
    ],
)
def test_what_a_template_refuses_is_the_users_error(
    template: str, messages: list[dict[str, str]], message: str
) -> None:
    with pytest.raises(UserInputError, match=message):
        render_chat(template, messages, bos_text="", eos_text="")


def test_templates_cannot_leave_the_sandbox() -> None:
    for attack in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ raise_exception.__globals__.jinja2 }}",
        "{{ dict.mro()[1] }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__class__=1) }}",
    ):
        with pytest.raises(UserInputError):
            render_chat(attack, CHAT, bos_text="", eos_text="")


def test_no_template(tokenizer: GgufTokenizer) -> None:
    with pytest.raises(UserInputError, match="no chat template"):
        encode_chat(tokenizer, None, CHAT)


@pytest.mark.real
def test_real_template_starts_and_ends_as_qwen_does() -> None:
    path = ModelCache.open().path_of(QWEN25_CODER_05B)
    if not path.is_file():
        pytest.skip("the default pair is not in the cache")
    tokenizer = GgufTokenizer.from_file(path)
    ids = encode_chat(tokenizer, tokenizer.chat_template, CHAT[1:2])
    text = b"".join(tokenizer.pieces[token] for token in ids).decode()
    assert text.startswith("<|im_start|>system\nYou are Qwen")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(151_644) == 3
