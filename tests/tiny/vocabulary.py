"""The one tokeniser of the tiny pair: 256 bytes, 10 merges, 3 specials, split as Qwen splits text."""

from functools import cache

MERGES: tuple[tuple[str, str], ...] = (
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("Ġt", "he"),  # a merge of merges
    ("Ġ", "a"),
    ("1", "0"),  # never used on text, where every digit stands alone: shows a wrong split at once
    ("Ġ", "Ġ"),
    ("Ċ", "Ċ"),
    ("Ã", "©"),  # one whole two-byte character
    ("ð", "Ł"),  # the first half of most emoji: never valid text by itself
)
"""Byte-pair merges in order of rank, in the printable alphabet (Ġ is a space, Ċ a line feed)."""

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS: tuple[str, ...] = (END_OF_TEXT, IM_START, IM_END)

N_ORDINARY = 256 + len(MERGES)
N_TOKENS = N_ORDINARY + len(SPECIALS)
END_OF_TEXT_ID, IM_START_ID, IM_END_ID = range(N_ORDINARY, N_TOKENS)
EOS_IDS: tuple[int, ...] = (IM_END_ID, END_OF_TEXT_ID)
PAD_ID = END_OF_TEXT_ID

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The split that llama.cpp applies for `tokenizer.ggml.pre = qwen2`."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, short."""


@cache
def alphabet() -> dict[str, int]:
    """Printable stand-in of every byte, in the order in which GPT-2 numbers them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
    return dict(zip(stand_ins, printable + others, strict=True))


def ordinary_tokens() -> list[str]:
    """Text of ids 0 .. N_ORDINARY - 1 in the printable alphabet: bytes, then merges."""
    return [*alphabet(), *(left + right for left, right in MERGES)]


def token_bytes() -> list[bytes]:
    """What each id of the tokeniser stands for; the specials stand for their own text."""
    stand_in = alphabet()
    ordinary = [bytes(stand_in[character] for character in token) for token in ordinary_tokens()]
    return ordinary + [special.encode() for special in SPECIALS]
