"""The draft model's tokenizer, read from its GGUF file through llama.cpp."""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from draftwire_edge.llama_model import LlamaModel
from draftwire_edge.llama_runtime import llama_cpp
from draftwire_protocol.errors import DrafterError

# llama_token_attr, a set of bits.
_UNKNOWN, _UNUSED, _NORMAL, _CONTROL = 1, 2, 4, 8
_PIECE_BYTES = 128
#: Pre-tokenizers whose tokenizer composes text first (the accent of "e" + U+0301 joins the e).
_PRE_WITH_NFC = frozenset({"qwen2"})


class Tokenizer(Protocol):
    """What prompts and texts need of a tokenizer."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """Bytes of every real id, ``[n_tokens]``."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja text of the chat template."""

    @property
    def bos_id(self) -> int | None:
        """The id that starts a text."""

    @property
    def eos_id(self) -> int | None:
        """The main end-of-generation id."""

    def text_of(self, token: int | None) -> str:
        """Written form of one id, "" for None."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text."""

    def close(self) -> None:
        """Free what it holds."""


class GgufTokenizer:
    """Vocabulary and text-to-ids of one GGUF model.

    Files pad the vocabulary with unused ids so that its size divides well; the logits have a row for
    them, but no text stands behind it. ``n_vocab`` counts them, ``n_tokens`` and ``pieces`` do not.

    llama.cpp takes every id whose *text* looks like an end of generation (``</s>`` in a Qwen file) for
    a control token, even when the file says it is ordinary text. Here the file decides: such an id is
    neither in ``special_ids`` nor in ``eos_ids``, and ``encode`` never makes it out of text.

    Args:
        model: the loaded model, shared with its other users.
    """

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._llama: Any = llama_cpp()
        self._vocab: Any = model.vocab
        #: Rows of the logits, padding included.
        self.n_vocab = int(self._llama.llama_vocab_n_tokens(self._vocab))
        #: Real ids: 0 .. n_tokens - 1.
        self.n_tokens = self._count_tokens()

    @classmethod
    def from_file(cls, path: Path) -> GgufTokenizer:
        """Load only the vocabulary of a file.

        Raises:
            CorruptModelError: the file is damaged or no GGUF.
            UnreadableModelError: there is no file, or it may not be read.
            DrafterError: llama.cpp is missing or cannot load it.
        """
        return cls(LlamaModel(path, vocab_only=True))

    def close(self) -> None:
        """Free the model; whoever shares it must be done with it."""
        self._model.close()

    def _count_tokens(self) -> int:
        """Last id that the file does not call unused, plus one."""
        attribute = self._llama.llama_vocab_get_attr
        for token in range(self.n_vocab - 1, -1, -1):
            if not attribute(self._vocab, token) & _UNUSED:
                return token + 1
        raise DrafterError(f"{self._model.path} has no vocabulary")

    @cached_property
    def pieces(self) -> list[bytes]:
        """Bytes of every real id, ``[n_tokens]``; control tokens have their written form."""
        _ = self._model.handle  # raises when closed
        convert, vocab, buffer = self._llama.llama_token_to_piece, self._vocab, _buffer(_PIECE_BYTES)
        pieces = []
        for token in range(self.n_tokens):
            length = convert(vocab, token, buffer, _PIECE_BYTES, 0, True)
            pieces.append(buffer[:length] if length >= 0 else self._long_piece(token, -length))
        return pieces

    def _long_piece(self, token: int, length: int) -> bytes:
        buffer = _buffer(length)
        self._llama.llama_token_to_piece(self._vocab, token, buffer, length, 0, True)
        return bytes(buffer[:length])

    @cached_property
    def _attributes(self) -> list[int]:
        """llama.cpp's attribute bits of every real id, ``[n_tokens]``."""
        _ = self._model.handle  # raises when closed
        attribute, vocab = self._llama.llama_vocab_get_attr, self._vocab
        return [attribute(vocab, token) for token in range(self.n_tokens)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: what the file calls control tokens."""
        return frozenset(
            token for token, bits in enumerate(self._attributes) if bits & _CONTROL and not bits & _NORMAL
        )

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation, rising."""
        is_end, vocab = self._llama.llama_vocab_is_eog, self._vocab
        named = {self._llama.llama_vocab_eos(vocab), self._llama.llama_vocab_eot(vocab)}
        wanted = sorted(self.special_ids | {token for token in named if 0 <= token < self.n_tokens})
        return tuple(token for token in wanted if is_end(vocab, token))

    @cached_property
    def bos_id(self) -> int | None:
        """The id that starts a text; None when the file names none (llama.cpp then makes one up)."""
        if self._model.metadata("tokenizer.ggml.bos_token_id") is None:
            return None
        token = int(self._llama.llama_vocab_bos(self._vocab))
        return token if 0 <= token < self.n_tokens else None

    @cached_property
    def eos_id(self) -> int | None:
        """The file's main end-of-generation id."""
        token = int(self._llama.llama_vocab_eos(self._vocab))
        return token if 0 <= token < self.n_tokens else None

    @cached_property
    def add_bos(self) -> bool:
        """Whether the model wants its prompts to start with ``bos_id``."""
        return self.bos_id is not None and bool(self._llama.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja text of the file's default chat template."""
        text = self._llama.llama_model_chat_template(self._model.handle, None)
        return None if text is None else text.decode("utf-8", "replace")

    def text_of(self, token: int | None) -> str:
        """Written form of one id, "" for None."""
        return "" if token is None else self.pieces[token].decode("utf-8", "replace")

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``.

        Args:
            text: any string; lone surrogates, which no tokenizer knows, become "?".
            add_special: put ``bos_id`` first if the model wants one; never adds an end.
            parse_special: read written control tokens (``<|im_start|>``) as such, not as text.
        """
        _ = self._model.handle  # raises when closed
        start = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        text = text.encode("utf-8", "replace").decode()
        if parse_special and not self._is_plain(text):
            return start + self._encode_by_parts(text)
        return start + self._tokenize(self._normalize(text), parse_special=parse_special)

    @cached_property
    def _normal_form(self) -> Literal["NFC"] | None:
        """Unicode form the tokenizer wants its text in; llama.cpp does not see to it."""
        return "NFC" if self._model.metadata("tokenizer.ggml.pre") in _PRE_WITH_NFC else None

    def _normalize(self, text: str) -> str:
        return unicodedata.normalize(self._normal_form, text) if self._normal_form else text

    def _is_plain(self, text: str) -> bool:
        """Whether llama.cpp finds the right control tokens by itself and the text needs no normalizing."""
        if self._normal_form and not unicodedata.is_normalized(self._normal_form, text):
            return False
        return not any(lookalike in text for lookalike in self._lookalikes)

    @cached_property
    def _lookalikes(self) -> list[str]:
        """Written forms that llama.cpp takes for control tokens against the file's word."""
        return [self.text_of(token) for token, bits in enumerate(self._attributes) if _is_lookalike(bits)]

    @cached_property
    def _controls(self) -> dict[str, int]:
        """Written form -> id of every true control token, longest first."""
        controls = {
            self.text_of(token): token
            for token, bits in enumerate(self._attributes)
            if bits & (_CONTROL | _UNKNOWN) and not _is_lookalike(bits) and self.pieces[token]
        }
        return dict(sorted(controls.items(), key=lambda item: len(item[0]), reverse=True))

    def _encode_by_parts(self, text: str) -> list[int]:
        """Ids of a text cut at its control tokens first, as transformers does it."""
        pattern = "|".join(re.escape(control) for control in self._controls)
        ids: list[int] = []
        for part in re.split(f"({pattern})", text) if pattern else [text]:
            if part in self._controls:
                ids.append(self._controls[part])
            elif part:
                ids += self._tokenize(self._normalize(part), parse_special=False)
        return ids

    def _tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        raw = text.encode()
        size = len(raw) + 8  # an id stands for at least a byte; room for a space put in front
        buffer = (self._llama.llama_token * size)()
        count = self._llama.llama_tokenize(self._vocab, raw, len(raw), buffer, size, False, parse_special)
        if count < 0:
            raise DrafterError(f"llama.cpp could not tokenize {len(raw)} bytes (it said {count})")
        return list(buffer[:count])


def _is_lookalike(bits: int) -> bool:
    """Whether llama.cpp put the control bit on top of the file's "normal"."""
    return bool(bits & _CONTROL and bits & _NORMAL)


def _buffer(size: int) -> Any:
    """``size`` writable bytes that slice to ``bytes``."""
    return ctypes.create_string_buffer(size)
