"""The commit transaction, the same on both ends: which verified tokens become the text.

Order: cut at the first end-of-generation id, cut at the stop string, cut at max_tokens; then update
counters, then emit. It looks at one token after another, so the outcome cannot depend on block
boundaries. The token that ends the text (an end id, or the one that completes a stop string) is
committed and counted; a stop string itself is never shown, nor is half a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from draftwire_protocol.errors import UserInputError

#: Most that the wire's uint32 can ask for.
MAX_MAX_TOKENS = (1 << 32) - 1


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Commit:
    """What one call to ``Transcript.commit`` added."""

    #: Ids kept, in order.
    ids: list[int]
    #: Text that became final for each kept id; held-back text comes with a later one.
    texts: list[str]
    finish_reason: FinishReason | None

    @property
    def text(self) -> str:
        """All new text."""
        return "".join(self.texts)


class Transcript:
    """The committed output of one generation.

    Args:
        pieces: bytes of every real id, ``[n_tokens]``.
        special_ids: ids that are never shown.
        eos_ids: ids that end the generation.
        stop: strings that end it.
        max_tokens: most output tokens.

    Raises:
        UserInputError: see ``check_limits``.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        special_ids: Collection[int],
        eos_ids: Collection[int],
        stop: Sequence[str],
        max_tokens: int,
    ) -> None:
        check_limits(stop, max_tokens)
        self.ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._pieces = pieces
        self._hidden = frozenset(special_ids) | frozenset(eos_ids)
        self._eos_ids = frozenset(eos_ids)
        self._max_tokens = max_tokens
        self._shown = _HeldText(stop)

    @property
    def room(self) -> int:
        """Output tokens that may still be committed."""
        return 0 if self.finish_reason else self._max_tokens - len(self.ids)

    def commit(self, ids: Sequence[int]) -> Commit:
        """Commit verified ids up to the end of the text.

        Args:
            ids: the next output tokens, ``[n]``; those after the end are dropped.
        """
        texts: list[str] = []
        for token in ids:
            if self.finish_reason:
                break
            texts.append(self._commit_one(token))
        return Commit(list(ids[: len(texts)]), texts, self.finish_reason)

    def _commit_one(self, token: int) -> str:
        self.ids.append(token)
        if token in self._eos_ids:
            self.finish_reason = FinishReason.STOP
            return self._shown.flush()
        text, stopped = self._shown.add(b"" if token in self._hidden else self._pieces[token])
        if stopped:
            self.finish_reason = FinishReason.STOP
        elif len(self.ids) >= self._max_tokens:
            self.finish_reason = FinishReason.LENGTH
            text += self._shown.flush()
        return text


def check_limits(stop: Sequence[str], max_tokens: int) -> None:
    """Refuse a stop string that is empty or no text, and a max_tokens outside [1, 2^32).

    Raises:
        UserInputError: naming the option and what to give instead.
    """
    if max_tokens < 1:
        raise UserInputError("--max-tokens", f"{max_tokens} is less than 1", "Ask for at least one token")
    if max_tokens > MAX_MAX_TOKENS:
        fix = f"Ask for at most {MAX_MAX_TOKENS}; a text ends where the context does anyway"
        raise UserInputError("--max-tokens", f"{max_tokens} is too large", fix)
    if any(not text for text in stop):
        raise UserInputError(
            "--stop", "a stop string is empty", "Leave it out, or give the text to stop before"
        )
    for text in stop:
        check_text("--stop", text)


def check_text(argument: str, text: str) -> None:
    """Refuse a text that UTF-8 cannot hold, hence neither a tokenizer nor the wire.

    Python turns bytes of a command line that are not UTF-8 into lone surrogates.

    Args:
        argument: what the user knows the text as, e.g. ``--stop``.
        text: as typed.

    Raises:
        UserInputError: it contains a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserInputError(
            argument, f"it is not valid UTF-8 (character {error.start + 1})", "Give it as UTF-8 text"
        ) from error


class _HeldText:
    """Turns bytes into text, holding back what might be half a character or half a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(text.encode() for text in stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""

    def add(self, piece: bytes) -> tuple[str, bool]:
        """New text that is safe to show, and whether a stop string was completed."""
        data = self._held + piece
        # Earlier tokens completed no stop string, so any match here ends in this piece.
        starts = [at for at in (data.find(text) for text in self._stop) if at >= 0]
        if starts:
            self._held = b""
            return self._decoder.decode(data[: min(starts)]), True
        keep = self._length_to_hold(data)
        self._held = data[len(data) - keep :]
        return self._decoder.decode(data[: len(data) - keep]), False

    def flush(self) -> str:
        """The held text at the end; a character cut in half is dropped, never shown broken."""
        data, self._held = self._held, b""
        return self._decoder.decode(data)

    def _length_to_hold(self, data: bytes) -> int:
        """Length of the longest suffix of ``data`` that begins a stop string."""
        longest = max((len(text) for text in self._stop), default=1) - 1
        for size in range(min(longest, len(data)), 0, -1):
            if any(text.startswith(data[-size:]) for text in self._stop):
                return size
        return 0
