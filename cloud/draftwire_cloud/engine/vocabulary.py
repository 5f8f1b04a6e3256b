"""Bytes of every token id, from a transformers tokenizer.

They must equal what llama.cpp's ``llama_token_to_piece(special=true)`` gives for the GGUF of the same model,
because the two ends compare them token by token.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_MARK = "\u2581"


def token_pieces(tokenizer: Any) -> list[bytes]:
    """Bytes of ids 0 .. len(tokenizer) - 1.

    Added tokens are their text; other tokens are spelled in GPT-2's byte alphabet or in SentencePiece's,
    with a mark for spaces and ``<0xNN>`` for bytes. Ids nobody uses are empty.

    Args:
        tokenizer: a fast transformers tokenizer.

    Raises:
        ValueError: for a slow tokenizer, whose spelling cannot be told.
    """
    added = tokenizer.added_tokens_decoder
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    to_bytes = _byte_level if is_byte_level(tokenizer) else _sentence_piece
    return [
        added[token].content.encode() if token in added else to_bytes(name or "")
        for token, name in enumerate(names)
    ]


def special_ids(tokenizer: Any) -> list[int]:
    """Ids of control tokens, which are never shown, ascending."""
    return sorted(token for token, added in tokenizer.added_tokens_decoder.items() if added.special)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether tokens are spelled in GPT-2's byte alphabet: then the decoder undoes it.

    Raises:
        ValueError: for a slow tokenizer.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{type(tokenizer).__name__} is a slow tokenizer; a tokenizer.json is needed")
    decoder = backend.decoder
    return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in character of each byte: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _byte_level(name: str) -> bytes:
    """A name in GPT-2's alphabet; one with other characters was added as plain text."""
    alphabet = byte_alphabet()
    if any(character not in alphabet for character in name):
        return name.encode()
    return bytes(alphabet[character] for character in name)


def _sentence_piece(name: str) -> bytes:
    """A SentencePiece name: one byte, or text with marked spaces."""
    found = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(found[1], 16)]) if found else name.replace(_SPACE_MARK, " ").encode()
