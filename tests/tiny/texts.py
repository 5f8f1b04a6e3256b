"""Random texts meant to find every place where two tokenisers could split differently."""

import random
from collections.abc import Iterator

from tiny.vocabulary import SPECIALS

# fmt: off
_WORDS = ("the", "then", "in", "inner", "there", "a", "at", "the there", "HTTPServer",
          "naïve", "café", "cafe\u0301")
_CONTRACTIONS = ("don't", "I'LL", "we're", "'tis", "they'Ve", "o'clock", "'S", "it's.", "x'd")
_DIGITS = ("0", "7", "42", "3.14159", "10", "1,000,000", "2026-01-31", "²", "½", "٣", "Ⅷ")
_SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\n \n",
           "\u00a0", "\u2003", "\u3000", "\u200b")
_MARKS = ("!", "...", "?!\n", "(a)", "[x]", "{}", "=>", "!=\n\n", "#", "_", "__init__", "—", "€",
          "<|", "|>", "<|im_")
_SCRIPTS = ("日本語", "한국어", "Привет", "مرحبا", "שלום", "हिन्दी", "ไทย", "\ufb01", "ǅ", "İ", "ß",
            "\u0300", "\ufeff")
_EMOJI = ("🙂", "👩‍👩‍👧", "🇫🇷", "👍🏽", "✈️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "❤", "\U0001d518", "𒀀")
# fmt: on
_FAMILIES = (_WORDS, _CONTRACTIONS, _DIGITS, _SPACES, _MARKS, _SCRIPTS, _EMOJI, SPECIALS)


def random_texts(count: int, seed: int) -> Iterator[str]:
    """Yield `count` texts of up to 16 pieces."""
    source = random.Random(seed)
    for _ in range(count):
        yield "".join(_piece(source) for _ in range(source.randint(0, 16)))


def _piece(source: random.Random) -> str:
    """Draw a known difficulty, a run of printable ASCII, or any character at all."""
    kind = source.random()
    if kind < 0.7:
        return source.choice(source.choice(_FAMILIES))
    if kind < 0.85:
        return "".join(chr(source.randint(0x20, 0x7E)) for _ in range(source.randint(1, 6)))
    return chr(_code_point(source))


def _code_point(source: random.Random) -> int:
    """Draw a code point that UTF-8 can hold, mostly from the first plane."""
    top = source.choice((0x80, 0x800, 0xD800, 0x110000))
    point = source.randrange(1, top)
    return point if not 0xD800 <= point < 0xE000 else 0xFFFD
