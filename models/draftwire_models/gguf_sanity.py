"""Values in a GGUF's metadata that no model has.

Most of them make llama.cpp end the whole process (an assertion, no error to
catch), so they are refused before it sees the file. What it refuses by itself,
such as a list of the wrong type, is left to it: it gives a reason to quote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwire_models.gguf_texts import Texts

# llama.cpp's LLAMA_MAX_LAYERS.
MAX_BLOCKS = 512
# No model was trained on less, and the drafter's self-test alone takes three tokens.
MIN_CONTEXT = 3


def absurdities(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with the sizes and the vocabulary, most telling first; nothing when all is well."""
    family = f"{metadata.get('general.architecture', '')}."
    sizes = {name.removeprefix(family): value for name, value in metadata.items() if name.startswith(family)}
    yield from _of_sizes(sizes)
    yield from _of_heads(sizes)
    yield from _of_vocabulary(metadata)


def _of_sizes(sizes: Mapping[str, Any]) -> Iterator[str]:
    blocks = sizes.get("block_count")
    if isinstance(blocks, int) and not 1 <= blocks <= MAX_BLOCKS:
        yield f"it says it has {blocks:,} layers"
    context = sizes.get("context_length")
    if isinstance(context, int) and context < MIN_CONTEXT:
        yield f"it says its context is {context} tokens long"
    for name in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = sizes.get(name)
        if isinstance(epsilon, float) and not epsilon >= 0:  # also true for NaN
            yield f"its {name} is {epsilon}"


def _of_heads(sizes: Mapping[str, Any]) -> Iterator[str]:
    """Query heads share key heads evenly; a list has a number for each layer, 0 where it has no attention."""
    heads, key_heads = (sizes.get(f"attention.head_count{end}") for end in ("", "_kv"))
    for queries, keys in zip(_layers(heads, key_heads), _layers(key_heads, heads), strict=False):
        if keys and queries % keys:
            yield f"its {queries} attention heads cannot share {keys} key heads evenly"


def _layers(count: Any, other: Any) -> Sequence[int]:
    """``count`` layer by layer, as many as ``other`` has; none where the file has no such numbers."""
    if isinstance(count, int):
        return [count] * (len(other) if isinstance(other, list) else 1)
    if isinstance(count, list) and all(isinstance(number, int) for number in count):
        return count
    return ()


def _of_vocabulary(metadata: Mapping[str, Any]) -> Iterator[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Texts):
        return
    texts = tokens.raw
    if b"\0" in b"".join(texts):  # llama.cpp reads a text up to its first NUL
        texts = [text.partition(b"\0")[0] for text in texts]
    # It names empty texts after their ids, so they may repeat.
    if len(set(texts)) < len(texts) - max(0, texts.count(b"") - 1):
        yield "its vocabulary has the same text twice"
