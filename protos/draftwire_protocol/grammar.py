"""Constrained output: which ids may come next, by JSON Schema or by regular expression.

Both ends build the same thing from the same two inputs, the text of the constraint and the bytes of
every id, so that a laptop drafts only what the cloud may accept. Every way to cut an allowed text into
tokens is allowed: what a mask rules out is text, never a tokenization.

The parser is llguidance. What this module adds to it:

* Ends of generation are kept apart from the text. Wherever the text may end, *every* end id is allowed;
  after the first one only ends may follow, so that no mask is ever empty. They roll back like the rest.
* A constraint that would be followed only in part is refused before the first token.
* A rejected token leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from draftwire_protocol.errors import UserInputError
from draftwire_protocol.grammar_spec import GrammarSpec, reason, refusal, source
from draftwire_protocol.scratch import scratch

if TYPE_CHECKING:
    from llguidance import LLMatcher

BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
UInt32Array = npt.NDArray[np.uint32]

#: Most states of a session's lexer, 1-2 kB each; ordinary constraints need hundreds.
_MAX_LEXER_STATES = 50_000
#: Row b: the limits of the eight ids behind byte b of a bitmask, +inf where allowed and else -inf.
_LIMITS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf
).astype(np.float32)


class GrammarCompiler:
    """Turns constraints into states over one vocabulary.

    The first ``compile`` prepares the vocabulary (0.6 s and 60 MB at 150,000 ids), each one then takes
    1 to 15 ms. Every call compiles anew: copies of one result share a lexer, with its lock and its limits,
    and one user's text must not exhaust or delay another's. Safe to call from several threads.

    Args:
        pieces: bytes of every real id, ``[n_tokens]``.
        special_ids: ids that stand for no text; never allowed.
        eos_ids: ids that end a generation; allowed exactly where the text may end.
    """

    def __init__(
        self, pieces: Sequence[bytes], special_ids: Collection[int], eos_ids: Collection[int]
    ) -> None:
        self._pieces = pieces
        self._special_ids = frozenset(special_ids)
        self._eos_ids = frozenset(eos_ids).intersection(range(len(pieces)))
        self._lock = Lock()

    def compile(self, spec: GrammarSpec) -> GrammarState:
        """The state before the first token.

        Raises:
            UserInputError: invalid, not supported in full, too complex, or no text of this vocabulary
                follows it.
        """
        if not self._eos_ids:
            problem = "this model has no id that ends a text"
            raise UserInputError(spec.option, problem, "Use a model that has one")
        with self._lock:
            vocabulary = self._vocabulary
        return GrammarState(vocabulary, vocabulary.matcher(spec), spec)

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        return _Vocabulary(self._pieces, self._special_ids, self._eos_ids)


class _Vocabulary:
    """What all states over one vocabulary share; arguments as for ``GrammarCompiler``."""

    def __init__(self, pieces: Sequence[bytes], special_ids: frozenset[int], eos_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415  # 40 ms to import

        self.n_tokens = len(pieces)
        self.eos_ids = eos_ids
        #: An id without bytes could be written for ever; llguidance takes byte 255, no UTF-8, for a mark.
        self.banned = frozenset(
            token
            for token, piece in enumerate(pieces)
            if token in special_ids or token in eos_ids or piece[:1] in {b"", b"\xff"}
        )
        #: Bits of the ids that can be text, and of those that end it; uint32 ``[ceil(n_tokens / 32)]``.
        self.text_bits = self._bits(set(range(self.n_tokens)) - self.banned)
        self.end_bits = self._bits(eos_ids)
        # Its own idea of an end is never asked for, so any of ours will do.
        tables = _Pieces(list(pieces), sorted(self.banned), min(eos_ids))
        self._tokenizer = LLTokenizer(TokenizerWrapper(tables))

    def _bits(self, ids: Collection[int]) -> UInt32Array:
        chosen = np.zeros(-(-self.n_tokens // 32) * 32, np.bool_)
        chosen[list(ids)] = True
        return np.packbits(chosen, bitorder="little").view("<u4").astype(np.uint32, copy=False)

    def matcher(self, spec: GrammarSpec) -> LLMatcher:
        """A parser of its own before the first token.

        Raises:
            UserInputError: the constraint cannot be followed.
        """
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  # 40 ms to import

        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, source(spec), log_level=0, limits=limits)
        if complaint := matcher.get_error() or "".join(matcher.get_grammar_warnings()):
            raise refusal(spec, reason(complaint))
        return matcher


class GrammarState:
    """Where a text stands in its constraint.

    One thread at a time; forks count as one with their origin.

    Args:
        vocabulary: what all states over it share.
        matcher: the parser, owned by this state.
        spec: what it parses, for messages.

    Raises:
        UserInputError: no text follows the constraint.
    """

    __slots__ = ("_bitmask", "_ends", "_length", "_matcher", "_spec", "_vocabulary")

    def __init__(self, vocabulary: _Vocabulary, matcher: LLMatcher, spec: GrammarSpec) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._spec = spec
        self._length = 0
        self._ends = 0
        self._bitmask: UInt32Array | None = None
        self.bitmask()

    @property
    def length(self) -> int:
        """Tokens taken so far, ends included."""
        return self._length + self._ends

    @property
    def option(self) -> str:
        """The option that the constraint came from."""
        return self._spec.option

    @property
    def n_tokens(self) -> int:
        """Ids that a mask covers."""
        return self._vocabulary.n_tokens

    @property
    def can_end(self) -> bool:
        """Whether an end id is allowed here: the text so far is complete."""
        return self._ends > 0 or self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Whether nothing but an end id may follow."""
        return not (self.bitmask() & self._vocabulary.text_bits).any()

    def bitmask(self) -> UInt32Array:
        """One bit an id, lowest first: uint32 ``[ceil(n_tokens / 32)]``, read-only, never all zeros.

        Raises:
            UserInputError: the constraint turned out too complex, or no id continues the text. The
                state is of no use then.
        """
        if self._bitmask is None:
            self._bitmask = self._look()
            self._bitmask.flags.writeable = False
        return self._bitmask

    def _look(self) -> UInt32Array:
        vocabulary = self._vocabulary
        if self._ends:
            return vocabulary.end_bits.copy()
        bits = np.empty_like(vocabulary.text_bits)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._raise_if_broken()
        np.bitwise_and(bits, vocabulary.text_bits, out=bits)
        if self._matcher.is_accepting():
            np.bitwise_or(bits, vocabulary.end_bits, out=bits)
        elif not bits.any():
            raise refusal(self._spec, reason("NoExtension"))
        return bits

    def _raise_if_broken(self) -> None:
        if self._matcher.is_error():
            raise refusal(self._spec, reason(self._matcher.get_error()))

    def allowed(self) -> BoolArray:
        """Which ids may come next: bool ``[n_tokens]``, the caller's own.

        Raises:
            UserInputError: as ``bitmask``.
        """
        bits = np.unpackbits(_bytes_of(self.bitmask()), count=self.n_tokens, bitorder="little")
        return bits.view(np.bool_)

    def mask_logits(self, logits: Float32Array) -> None:
        """Set the logits of all other ids to -inf, in place.

        Args:
            logits: float32 ``[n_tokens]``, padding ids already cut off.

        Raises:
            UserInputError: as ``bitmask``.
            ValueError: another shape or type.
        """
        if logits.shape != (self.n_tokens,) or logits.dtype != np.float32:
            raise ValueError(f"{logits.dtype} {logits.shape} are no float32 logits of {self.n_tokens} ids")
        packed = _bytes_of(self.bitmask())
        limits = scratch("grammar", 8 * len(packed), np.float32)
        # A table and a minimum: no branch an id, so as fast for a mixed mask as for an even one.
        np.take(_LIMITS, packed, axis=0, out=limits.reshape(-1, 8), mode="clip")
        np.minimum(logits, limits[: self.n_tokens], out=logits)

    def advance(self, token: int) -> bool:
        """Take one token; False, with nothing changed, when it is not allowed here.

        Args:
            token: any integer; those outside of the vocabulary are not allowed anywhere.

        Raises:
            UserInputError: the constraint turned out too complex; the state is of no use then.
        """
        if token in self._vocabulary.eos_ids:
            return self._end()
        if self._ends or token in self._vocabulary.banned or not 0 <= token < self.n_tokens:
            return False
        taken = self._matcher.try_consume_tokens([token])
        self._raise_if_broken()
        if taken:
            self._length += 1
            self._bitmask = None
        return bool(taken)

    def _end(self) -> bool:
        if not self.can_end:
            return False
        self._ends += 1
        self._bitmask = None
        return True

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` tokens, ends included.

        Raises:
            ValueError: fewer were taken.
        """
        if not 0 <= count <= self.length:
            raise ValueError(f"cannot undo {count} of {self.length} tokens")
        if not count:
            return
        of_text = max(0, count - self._ends)
        if of_text and not self._matcher.rollback(of_text):
            raise refusal(self._spec, reason(self._matcher.get_error()))
        self._ends -= count - of_text
        self._length -= of_text
        self._bitmask = None

    def fork(self) -> GrammarState:
        """An independent state at the same place; takes 10 µs."""
        twin = object.__new__(GrammarState)
        twin._vocabulary, twin._spec = self._vocabulary, self._spec
        twin._matcher = self._matcher.deep_copy()
        twin._length, twin._ends, twin._bitmask = self._length, self._ends, self._bitmask
        return twin


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A vocabulary in the form in which llguidance takes it."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: None = None

    def __call__(self, _text: bytes) -> list[int]:
        """Ids of forced text; nobody asks, as ``no_forcing`` leaves no text forced."""
        return []


@cache
def _byte_compiler() -> GrammarCompiler:
    """Any vocabulary that has every byte can write the same texts as this one."""
    return GrammarCompiler([bytes([byte]) for byte in range(256)] + [b""], (), (256,))


def _bytes_of(bitmask: UInt32Array) -> npt.NDArray[np.uint8]:
    """Its bytes, id 0 in the lowest bit of the first; uint8 ``[4 * ceil(n_tokens / 32)]``."""
    return bitmask.astype("<u4", copy=False).view(np.uint8)


def check_grammar(spec: GrammarSpec) -> None:
    """Refuse what cannot be followed; needs no vocabulary, so it comes before any download.

    Raises:
        UserInputError: invalid, not supported in full, or too complex.
    """
    _byte_compiler().compile(spec)
