"""What changes logits by what was written: biases, penalties, bans. Runs before the warpers.

Order: logit_bias, repetition penalty, presence and frequency penalty, bad words, min_tokens, grammar;
as transformers orders those it has. The state is that of one position: the committed ids and the
drafted ones assumed before it, so a verdict on a block first assumes token by token and then goes back
to what was accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from draftwire_protocol.errors import NothingToWriteError, UserInputError
from draftwire_protocol.grammar import GrammarState
from draftwire_protocol.noise import Int64Array
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.prefix import common_prefix
from draftwire_protocol.sampling import Float32Array

_BANNED = np.float32(-np.inf)


class LogitsProcessors:
    """Processors of one generation, at one position at a time.

    Args:
        params: sampling parameters.
        num_prompt: how many of the ids are the prompt, which presence and frequency do not count.
        eos_ids: ids that end a generation.
        grammar: at its start; it follows the output from here on.
    """

    def __init__(
        self,
        params: SamplingParams,
        num_prompt: int,
        eos_ids: Collection[int],
        grammar: GrammarState | None = None,
    ) -> None:
        self._params = params
        self._num_prompt = num_prompt
        self._eos_ids = np.array(sorted(eos_ids), np.int64)
        # As in transformers, a ban of an end id alone is no ban.
        self._bad_words = _by_last_but_one(set(params.bad_words) - {(one,) for one in eos_ids})
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._grammar = grammar
        self._ids: list[int] = []
        self._in_text: Counter[int] = Counter()
        self._in_output: Counter[int] = Counter()
        self.active = bool(
            len(self._bias_ids)
            or params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or self._bad_words
            or params.min_tokens
            or grammar
        )

    def move_to(self, ids: Sequence[int]) -> None:
        """Assume these ids, prompt included, before the next row; costs what differs from the last call.

        Raises:
            UserInputError: the grammar does not allow them.
        """
        if not self.active:
            return
        keep = common_prefix(self._ids, ids)
        while len(self._ids) > keep:
            self._forget_last()
        for token in ids[keep:]:
            self.assume(token)

    def assume(self, token: int) -> None:
        """Assume one more id."""
        if not self.active:
            return
        if len(self._ids) >= self._num_prompt:
            if self._grammar and not self._grammar.advance(token):
                problem = f"the constraint does not allow token {token} here"
                raise UserInputError(self._grammar.option, problem, "Do both ends run the same version?")
            self._in_output[token] += 1
        self._in_text[token] += 1
        self._ids.append(token)

    def _forget_last(self) -> None:
        token = self._ids.pop()
        counters = [self._in_text]
        if len(self._ids) >= self._num_prompt:
            counters.append(self._in_output)
            if self._grammar:
                self._grammar.rollback(1)
        for counter in counters:
            counter[token] -= 1
            if not counter[token]:
                del counter[token]

    def __call__(self, logits: Float32Array) -> Float32Array:
        """Process the row of the position after the assumed ids.

        Args:
            logits: float32 ``[n_tokens]``, only read.

        Returns:
            A new row; the same one when nothing is on.

        Raises:
            NothingToWriteError: nothing is allowed any more.
        """
        if not self.active:
            return logits
        row = logits.copy()
        row[self._bias_ids] += self._biases
        self._penalise_repetition(row)
        self._penalise_output(row)
        self._ban(row)
        if self._grammar:
            self._grammar.mask_logits(row)
        if not row.max() > _BANNED:
            raise NothingToWriteError(
                "--bad-word, --min-tokens, --json-schema, --regex",
                "together they leave no token to write",
                "Ask for less",
            )
        return row

    def _penalise_repetition(self, row: Float32Array) -> None:
        """Keskar et al. 2019 (CTRL), 4.1; negative logits are multiplied so that they fall too."""
        penalty = np.float32(self._params.repetition_penalty)
        if penalty == 1.0:
            return
        ids = _keys(self._in_text)
        row[ids] = np.where(row[ids] < 0.0, row[ids] * penalty, row[ids] / penalty)

    def _penalise_output(self, row: Float32Array) -> None:
        """Logit minus presence, minus frequency times how often the id is in the output."""
        params = self._params
        if not (params.presence_penalty or params.frequency_penalty) or not self._in_output:
            return
        counts = np.fromiter(self._in_output.values(), np.float32, len(self._in_output))
        row[_keys(self._in_output)] -= params.presence_penalty + params.frequency_penalty * counts

    def _ban(self, row: Float32Array) -> None:
        """Bad words that would be completed, and the end before min_tokens."""
        last = self._ids[-1] if self._ids else None
        for word in (*self._bad_words.get(None, ()), *(self._bad_words.get(last, ()) if self._ids else ())):
            start = len(self._ids) - len(word) + 1
            if start >= 0 and tuple(self._ids[start:]) == word[:-1]:
                row[word[-1]] = _BANNED
        if len(self._ids) - self._num_prompt < self._params.min_tokens:
            row[self._eos_ids] = _BANNED


def check_ids(params: SamplingParams, n_tokens: int) -> None:
    """Refuse ids that the vocabulary does not have.

    Raises:
        UserInputError: naming the option.
    """
    fix = f"Give ids below {n_tokens}"
    for token, _ in params.logit_bias:
        if token >= n_tokens:
            raise UserInputError("--logit-bias", f"the vocabulary has no token {token}", fix)
    for token in (one for word in params.bad_words for one in word):
        if token >= n_tokens:
            raise UserInputError("--bad-word", f"the vocabulary has no token {token}", fix)


def _by_last_but_one(words: Collection[tuple[int, ...]]) -> dict[int | None, list[tuple[int, ...]]]:
    """Words by the id that the text must end with before they can be completed; None for any."""
    found: dict[int | None, list[tuple[int, ...]]] = {}
    for word in words:
        found.setdefault(word[-2] if len(word) > 1 else None, []).append(word)
    return found


def _keys(counter: Counter[int]) -> Int64Array:
    return np.fromiter(counter, np.int64, len(counter))
