"""The Gumbel noise both ends derive from integers: G(seed, position, token_id).

One integer-only definition, the same in Python, numpy and torch: int64 arithmetic wraps around, so
the array functions only use ``+ * ^ >> &`` and give the same bits for a numpy array and a torch
tensor. The mixer is the finalizer of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable
pseudorandom number generators"). With G = 0x9E3779B97F4A7C15 and everything modulo 2^64:

    key = mix(mix(seed + G) + (position + 1) * G)
    h   = mix(key + (token + 1) * G)
    m   = 2 * (h >> 12) + 1          an odd 53-bit integer, so 0 < u < 1 exactly
    u   = m * 2^-53
    noise = -ln(-ln u)               a standard Gumbel variable

The rejection schemes draw drafts and decide on them by plain uniforms, from ids that no vocabulary has,
and redraw with this noise, which their drafts do not use. Changing any of it changes every seeded text: it
is part of the protocol.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from draftwire_protocol.scratch import scratch

GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_WORD = (1 << 64) - 1
#: Noise that 1 id in 150 reaches: few enough to look at each, rare enough to leave few other winners.
LOUD = 5.0

#: First of the ids that draws hash; every token id is below it.
_DRAWS = 1 << 40

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class IntegerArray(Protocol):
    """What an int64 numpy array and an int64 torch tensor have in common."""

    def __add__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __xor__(self, other: Any, /) -> Self: ...
    def __and__(self, other: Any, /) -> Self: ...
    def __rshift__(self, other: Any, /) -> Self: ...


A = TypeVar("A", bound=IntegerArray)


def _signed(word: int) -> int:
    """The int64 with the same 64 bits as ``word``."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


def mix(word: int) -> int:
    """The splitmix64 finalizer on one unsigned 64-bit integer."""
    word &= _WORD
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        word = ((word ^ (word >> shift)) * multiplier) & _WORD
    return word ^ (word >> _SHIFTS[2])


def position_key(seed: int, position: int) -> int:
    """Key of one position's noise.

    Args:
        seed: 0 <= seed < 2^64.
        position: absolute index of the token in prompt + output.
    """
    return mix(mix(seed + GOLDEN) + (position + 1) * GOLDEN)


def token_hash(key: int, token: int) -> int:
    """h(key, token) as an unsigned integer; the scalar reference of ``token_hashes``."""
    return mix(key + (token + 1) * GOLDEN)


def _shift_right(words: A, shift: int) -> A:
    """Logical right shift of int64 words (``>>`` on int64 copies the sign bit)."""
    return (words >> shift) & ((1 << (64 - shift)) - 1)


def token_hashes(key: int, tokens: A) -> A:
    """h(key, token) for many tokens.

    Args:
        key: from ``position_key``.
        tokens: int64 ``[n]``, numpy or torch.

    Returns:
        int64 ``[n]``, the hash's 64 bits read as signed.
    """
    words = (tokens + 1) * _signed(GOLDEN) + _signed(key)
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        words = (words ^ _shift_right(words, shift)) * _signed(multiplier)
    return words ^ _shift_right(words, _SHIFTS[2])


def tokens_hashed_above(key: int, count: int, threshold: int) -> Int64Array:
    """Every token of 0 .. count - 1 with h(key, token) >= threshold, rising, and maybe a few more.

    The mixer's last step leaves the upper bits as they are, so these are compared before it. Unsigned
    words shift without a mask, and are mixed in buffers of this thread.

    Args:
        key: from ``position_key``.
        count: number of tokens.
        threshold: 0 <= threshold < 2^64.
    """
    words = scratch("words", count, np.uint64)
    shifted = scratch("shifted", count, np.uint64)
    np.add(_weyl_sequence(count), np.uint64(key), out=words)
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(multiplier)
    unchanged = _SHIFTS[2]
    floor = threshold >> (64 - unchanged) << (64 - unchanged)
    return np.flatnonzero(words >= np.uint64(floor))


@lru_cache(maxsize=4)
def _weyl_sequence(count: int) -> npt.NDArray[np.uint64]:
    """(token + 1) * G modulo 2^64, the same for every key."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)


class LoudTokens(NamedTuple):
    """Every id of a vocabulary with noise >= ``LOUD`` at one position, and maybe a few more."""

    #: int64 ``[k]``, rising
    ids: Int64Array
    #: float64 ``[k]``
    noise: Float64Array


@lru_cache(maxsize=1024)
def loud_tokens(key: int, count: int) -> LoudTokens:
    """The ids 0 .. count - 1 that noise alone may make a winner of.

    Needs no logits, so it can be asked ahead, while the position's are still to come; the last ones are
    remembered, at 16 KB each for 150,000 ids.

    Args:
        key: from ``position_key``.
        count: number of ids.
    """
    # -ln(-ln u) >= LOUD  <=>  u >= exp(-exp(-LOUD)); one part in 10^9 of slack covers the rounding.
    uniform = math.exp(-math.exp(-LOUD)) * (1.0 - 1e-9)
    ids = tokens_hashed_above(key, count, int(uniform * 2.0**64))
    return LoudTokens(ids, gumbel_noise(key, ids))


def numerators(hashes: A) -> A:
    """m = 2 * (h >> 12) + 1, int64 ``[n]``; the uniform is m * 2^-53."""
    return _shift_right(hashes, 12) * 2 + 1


def gumbel_noise(key: int, tokens: Int64Array) -> Float64Array:
    """-ln(-ln u) of some tokens at one position, float64 ``[n]``."""
    uniforms = numerators(token_hashes(key, tokens)).astype(np.float64) * 2.0**-53
    return cast("Float64Array", -np.log(-np.log(uniforms)))


class Purpose(IntEnum):
    """What a uniform is drawn for; draws for different purposes are independent."""

    DRAFT = 0
    ACCEPT = 1


def uniform(seed: int, start: int, offset: int, purpose: Purpose) -> float:
    """A uniform in (0, 1) for one place of one block.

    Keyed by where the block starts, not by the place alone: block verification looks at draws for
    places that it then gives up, so the next block must not meet them again.

    Args:
        seed: 0 <= seed < 2^64.
        start: absolute position of the block's first token.
        offset: place in the block.
        purpose: of the draw.
    """
    word = token_hash(position_key(seed, start), _DRAWS + 4 * offset + purpose)
    return (2 * (word >> 12) + 1) * 2.0**-53
