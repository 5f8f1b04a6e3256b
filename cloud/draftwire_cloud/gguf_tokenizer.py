r"""A GGUF file's tokenizer as a transformers folder, made to agree with llama.cpp id for id.

transformers reads the tokenizer out of a GGUF almost right. Three things are
put right here, each seen to differ on a real file:

* Text is split the way ``tokenizer.ggml.pre`` says. transformers knows the Qwen
  and Llama-3 splits, but cuts a SmolLM text like GPT-2's ("\n3" differently).
* Trailing ids of type UNUSED are padding for the matrix, no tokens: kept, they
  would make ``len(tokenizer)`` 151,936 where Qwen publishes 151,665.
* A model may end its turn with more ids than the one called EOS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwire_models.errors import ConversionError
from draftwire_models.gguf_header import TOKEN_CONTROL, TOKEN_UNUSED, GgufHeader

# Values of tokenizer.ggml.pre that cut every digit off by itself before GPT-2's pattern.
DIGIT_SPLITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})

# Ids that metadata names as ends, and texts that are ends wherever they are control tokens.
# llama.cpp goes by the text alone: in Qwen it also stops at the plain HTML-ish word "</s>",
# which the target itself writes like any other. It also counts the fill-in-the-middle
# separators, at which no published generation_config stops.
_END_KEYS = ("eos", "eot", "eom")
END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endofturn|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "</s>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
        "<|END_OF_TURN_TOKEN|>",
    }
)


def end_of_generation_ids(header: GgufHeader) -> list[int]:
    """Return every id that ends a generation, the one called EOS first."""
    named = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in _END_KEYS]
    kinds = _token_kinds(header)
    by_text = [
        i
        for i, token in enumerate(_tokens(header))
        if token in END_TEXTS and i < len(kinds) and kinds[i] == TOKEN_CONTROL
    ]
    return list(dict.fromkeys([i for i in named if isinstance(i, int)] + by_text))


def vocabulary_size(header: GgufHeader) -> int:
    """Return the number of real ids: without UNUSED ones at the end."""
    size, kinds = len(_tokens(header)), _token_kinds(header)
    while size and size <= len(kinds) and kinds[size - 1] == TOKEN_UNUSED:
        size -= 1
    return size


def save_tokenizer(gguf: Path, header: GgufHeader, folder: Path) -> None:
    """Write the tokenizer and chat template of `gguf` into `folder`."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # seconds to import

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if header.metadata.get("tokenizer.ggml.pre") in DIGIT_SPLITS:
        tokenizer.backend_tokenizer.pre_tokenizer = _digits_then_gpt2()
    context = header.metadata.get(f"{header.architecture}.context_length")
    if isinstance(context, int):
        tokenizer.model_max_length = context
    tokenizer.save_pretrained(folder)
    _drop_unused(folder / "tokenizer.json", vocabulary_size(header))
    _require_same(AutoTokenizer.from_pretrained(folder), gguf, header)


def _digits_then_gpt2() -> Any:
    from tokenizers import pre_tokenizers  # noqa: PLC0415  # only while converting

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _drop_unused(path: Path, size: int) -> None:
    """Take ids from `size` on out of a byte-pair vocabulary."""
    written = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = written["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return
    written["model"]["vocab"] = {token: i for token, i in vocabulary.items() if i < size}
    path.write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")


def _require_same(tokenizer: Any, gguf: Path, header: GgufHeader) -> None:
    """Refuse a conversion that lost tokens, moved ids or dropped the chat template."""
    size = vocabulary_size(header)
    if len(tokenizer) != size:
        raise ConversionError(f"{gguf}: the converted tokenizer has {len(tokenizer)} ids, the file {size}")
    mine = tokenizer.convert_ids_to_tokens(list(range(size)))
    moved = [i for i, token in enumerate(_tokens(header)[:size]) if token.isascii() and mine[i] != token]
    if moved:
        raise ConversionError(
            f"{gguf}: id {moved[0]} is {mine[moved[0]]!r} after conversion,"
            f" {_tokens(header)[moved[0]]!r} in the file ({len(moved)} ids differ)"
        )
    if tokenizer.chat_template != header.metadata.get("tokenizer.chat_template"):
        raise ConversionError(f"{gguf}: the chat template did not survive the conversion")


def _tokens(header: GgufHeader) -> list[str]:
    return list(header.metadata.get("tokenizer.ggml.tokens", ()))


def _token_kinds(header: GgufHeader) -> list[int]:
    return list(header.metadata.get("tokenizer.ggml.token_type", ()))
