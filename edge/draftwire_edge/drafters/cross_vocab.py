"""A draft model whose vocabulary is not the target's.

It reads the text, not the ids, and guesses ids that both vocabularies have, spelled alike (token-level
intersection: Timor et al. 2025, arXiv 2502.05202). Where the target would cut the drafted text into other
ids, it is cut again as the target does (string-level exact match, same source). Whatever comes of it is a
draft like any other: the target decides, so the text is exact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.proposer import Proposer
from draftwire_edge.target_tokenizer import TargetTokenizer
from draftwire_edge.tokenizer import GgufTokenizer
from draftwire_protocol.noise import Int64Array
from draftwire_protocol.sampling import Float32Array


class SharedIds:
    """Ids that two vocabularies have in common: the same bytes, and special in both or in neither.

    Where neither main end is spelled like an end of the other, the two stand for each other: without an
    end in common a draft would run past it.

    Args:
        own: the draft model's.
        target: the target's.
    """

    def __init__(self, own: GgufTokenizer, target: TargetTokenizer) -> None:
        pairs = _paired_ends(_spelled_alike(own, target), own, target)
        #: Target id -> the draft model's; of several spelled alike the one that ends texts, or the lowest.
        self.own_of = {theirs: ours for ours, theirs in reversed(pairs.items())}
        self.own_of |= {pairs[token]: token for token in (*own.eos_ids, own.eos_id) if token in pairs}
        #: int64 ``[k]`` each, in step.
        self.own: Int64Array = np.fromiter(self.own_of.values(), np.int64, len(self.own_of))
        self.target: Int64Array = np.fromiter(self.own_of.keys(), np.int64, len(self.own_of))


def _spelled_alike(own: GgufTokenizer, target: TargetTokenizer) -> dict[int, int]:
    """The draft model's id -> the target's; the lowest where several of the target's have the same bytes."""
    by_bytes = {
        (piece, token in target.special_ids): token
        for token, piece in reversed(list(enumerate(target.pieces)))
        if piece
    }
    return {
        token: by_bytes[key]
        for token, piece in enumerate(own.pieces)
        if (key := (piece, token in own.special_ids)) in by_bytes
    }


def _paired_ends(pairs: dict[int, int], own: GgufTokenizer, target: TargetTokenizer) -> dict[int, int]:
    """``pairs``, and where it is needed the two main ends."""
    ends = target.eos_ids
    theirs = target.eos_id if target.eos_id in ends else next(iter(ends), None)
    if own.eos_id is None or theirs is None or pairs.get(own.eos_id) in ends:
        return pairs
    has_theirs = theirs in {pairs.get(token) for token in own.eos_ids}
    return pairs if has_theirs else {**pairs, own.eos_id: theirs}


#: A byte that is no part of a character, as Python writes it into a string.
_NO_TEXT = re.compile("([\udc80-\udcff])")


class _Translator:
    """Lets the target's proposer guess from the draft model's logits."""

    def __init__(self, proposer: Proposer, shared: SharedIds, row: Float32Array) -> None:
        self._proposer = proposer
        self._shared = shared
        self._row = row
        #: Guesses in the target's ids.
        self.guesses: list[Guess] = []

    def begin(self, context: Sequence[int]) -> None:
        """The proposer was told already, in the target's ids."""

    def guess(self, logits: Float32Array) -> Guess:
        """The guess, as the draft model knows it."""
        self._row[self._shared.target] = logits[self._shared.own]
        guess = self._proposer.guess(self._row)
        self.guesses.append(guess)
        return Guess(self._shared.own_of[guess.token], guess.top_probability)


class CrossVocabDrafter:
    """Drafts for a target of another vocabulary; owns the draft model.

    Args:
        inner: the draft model.
        target: the target's tokenizer.
    """

    def __init__(self, inner: LlamaCppDrafter, target: TargetTokenizer) -> None:
        self.name = inner.name
        self.context_length = inner.context_length
        self._inner = inner
        self._target = target
        self._shared = SharedIds(inner.tokenizer, target)
        self._no_text = target.special_ids.union(target.eos_ids)
        self._byte_ids = {
            piece: [token] for token, piece in enumerate(inner.tokenizer.pieces) if len(piece) == 1
        }
        #: Ids that only the target has stay at -inf.
        self._row = np.full(target.n_tokens, -np.inf, np.float32)

    @property
    def model_seconds(self) -> float:
        """Seconds spent inside the draft model so far."""
        return self._inner.model_seconds

    def prefill(self, context: Sequence[int]) -> None:
        """Take in a context before it is needed."""
        self._inner.prefill(self._own_ids(context))

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """Guess up to ``limit`` of the target's tokens after ``context``."""
        proposer.begin(context)
        translator = _Translator(proposer, self._shared, self._row)
        self._inner.draft(self._own_ids(context), translator, limit, lambda _: want_more(translator.guesses))
        return self._recut(translator.guesses)

    def interrupt(self) -> None:
        """End the draft at hand."""
        self._inner.interrupt()

    def close(self) -> None:
        """Free the draft model."""
        self._inner.close()

    def _own_ids(self, context: Sequence[int]) -> list[int]:
        """The text so far in the draft model's ids; half a character byte by byte."""
        text = self._text(context[1:] if list(context[:1]) == [self._target.bos_id] else context)
        ids: list[int] = []
        for start, part in enumerate(_NO_TEXT.split(text.decode("utf-8", "surrogateescape"))):
            if _NO_TEXT.fullmatch(part):
                ids += self._byte_ids.get(part.encode("utf-8", "surrogateescape"), [])
            elif part or not start:
                ids += self._inner.tokenizer.encode(part, add_special=not start, parse_special=True)
        return ids

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._target.pieces[token] for token in ids)

    def _recut(self, guesses: list[Guess]) -> list[Guess]:
        """The same text in the ids that the target would use.

        Drawn guesses stay: what was drawn must be sent, whatever it is.
        """
        plain = next((i for i, one in enumerate(guesses) if one.token in self._no_text), None)
        head, tail = guesses[:plain], [] if plain is None else guesses[plain:]
        if not head or any(guess.proposal for guess in guesses):
            return guesses
        try:
            text = self._text([guess.token for guess in head]).decode()
        except UnicodeDecodeError:
            return guesses
        ids = self._target.encode(text, add_special=False, parse_special=False)
        if not all(token < self._target.n_tokens and self._target.pieces[token] for token in ids):
            return guesses  # ids that the card does not know, or that stand for no text
        if ids == [guess.token for guess in head] or self._text(ids) != text.encode():
            return guesses  # the same, or the tokenizer composes characters
        confidences = self._confidences(head, ids)
        recut = [Guess(token, sure) for token, sure in zip(ids, confidences, strict=True)] + tail
        return recut[: len(guesses)]

    def _confidences(self, guesses: Sequence[Guess], ids: Sequence[int]) -> list[float]:
        """Of each id, the lowest confidence among the guesses whose text it takes from."""
        ends = [*accumulate(len(self._target.pieces[guess.token]) for guess in guesses)]
        starts = [0, *ends]
        confidences, start = [], 0
        for token in ids:
            end = start + len(self._target.pieces[token])
            parts = zip(guesses, starts, ends, strict=False)
            confidences.append(min((one.top_probability for one, a, b in parts if a < end and b > start)))
            start = end
        return confidences
