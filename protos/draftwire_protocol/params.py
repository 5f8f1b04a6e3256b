"""What a user may say about sampling.

Names, ranges and meaning are those of transformers; of vLLM for presence and frequency penalty, which
transformers does not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftwire_protocol.errors import UserInputError

MAX_SEED = (1 << 64) - 1
#: Most that the wire's uint32 can hold; no vocabulary comes near it.
MAX_UINT32 = (1 << 32) - 1
#: Smaller ones write the greedy text but for near ties, until logit / temperature leaves float32.
MIN_TEMPERATURE = 1e-6
#: Larger ones are as good as drawing any id at random.
MAX_TEMPERATURE = 1e6
#: As in other engines; beyond it a token is as good as banned or forced.
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
#: Most biases, and most bad words: each costs time at every token.
MAX_ENTRIES = 1024
MAX_WORD_IDS = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, in the order in which they act on the logits.

    Raises:
        UserInputError: naming the option and its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    #: Keep the ids whose surprise is nearest to the entropy, up to this probability; 1 keeps all.
    typical_p: float = 1.0
    #: Divides positive logits of ids in prompt or output, multiplies negative ones; 1 does nothing.
    repetition_penalty: float = 1.0
    #: Subtracted once from ids in the output, and once for each time they are in it; 0 does nothing.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: (id, what is added to its logit).
    logit_bias: tuple[tuple[int, float], ...] = ()
    #: No end-of-generation id before this many output tokens.
    min_tokens: int = 0
    #: Runs of ids that must not be completed.
    bad_words: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        self._check_temperature()
        for argument, value, holds, range_, fix in self._ranges():
            if not holds:
                raise UserInputError(argument, f"{value} is not in {range_}", fix)
        for argument, count in (("--logit-bias", len(self.logit_bias)), ("--bad-word", len(self.bad_words))):
            if count > MAX_ENTRIES:
                raise UserInputError(argument, f"{count} are too many", f"Use at most {MAX_ENTRIES}")
        for token, bias in self.logit_bias:
            if not (0 <= token <= MAX_UINT32 and abs(bias) <= MAX_BIAS):
                fix = f"Give token ids and biases from -{MAX_BIAS:.0f} to {MAX_BIAS:.0f}, e.g. 198:-5"
                raise UserInputError("--logit-bias", f"{token}:{bias} is out of range", fix)
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise UserInputError("--logit-bias", "a token has two biases", "Give each token one")
        if any(len(word) > MAX_WORD_IDS for word in self.bad_words):
            problem, fix = "a word is too long", f"Give words of at most {MAX_WORD_IDS} tokens"
            raise UserInputError("--bad-word", problem, fix)
        if any(not word for word in self.bad_words):
            raise UserInputError("--bad-word", "it is empty", "Leave it out, or give the text to avoid")

    def _check_temperature(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise UserInputError(
                "--temperature", f"{self.temperature} is not >= 0", "Use 0 for greedy, e.g. 0.7"
            )
        if self.temperature > MAX_TEMPERATURE:
            problem, fix = f"{self.temperature} is too large", f"Use at most {MAX_TEMPERATURE:.0f}, e.g. 0.7"
            raise UserInputError("--temperature", problem, fix)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise UserInputError(
                "--temperature",
                f"{self.temperature} is too close to 0",
                f"Use 0 for greedy, or at least {MIN_TEMPERATURE}",
            )

    def _ranges(self) -> list[tuple[str, float, bool, str, str]]:
        """Option, value, whether it is in range, the range, what to type instead."""
        uint32, penalty = f"[0, {MAX_UINT32}]", f"[-{MAX_PENALTY}, {MAX_PENALTY}]"
        return [
            ("--top-k", self.top_k, 0 <= self.top_k <= MAX_UINT32, uint32, "Use 0 to keep all, or e.g. 50"),
            ("--top-p", self.top_p, 0.0 < self.top_p <= 1.0, "(0, 1]", "Use 1 to keep all, or e.g. 0.9"),
            ("--min-p", self.min_p, 0.0 <= self.min_p <= 1.0, "[0, 1]", "Use 0 to drop none, or e.g. 0.05"),
            ("--seed", self.seed, 0 <= self.seed <= MAX_SEED, "[0, 2^64)", "Use a non-negative integer"),
            (
                "--typical-p", self.typical_p,
                0.0 < self.typical_p <= 1.0, "(0, 1]", "Use 1 to keep all, or e.g. 0.9",
            ),
            (
                "--repetition-penalty", self.repetition_penalty,
                0.01 <= self.repetition_penalty <= 100.0, "[0.01, 100]", "Use 1 for none, e.g. 1.1",
            ),
            (
                "--presence-penalty", self.presence_penalty,
                abs(self.presence_penalty) <= MAX_PENALTY, penalty, "Use 0 for none",
            ),
            (
                "--frequency-penalty", self.frequency_penalty,
                abs(self.frequency_penalty) <= MAX_PENALTY, penalty, "Use 0 for none",
            ),
            (
                "--min-tokens", self.min_tokens,
                0 <= self.min_tokens <= MAX_UINT32, uint32, "Use 0 for no minimum",
            ),
        ]  # fmt: skip

    @property
    def greedy(self) -> bool:
        """Whether the token is the plain argmax."""
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        """Whether top-k, top-p, min-p or typical-p takes ids out of the draw."""
        return bool(self.top_k) or self.top_p < 1.0 or self.min_p > 0.0 or self.typical_p < 1.0
