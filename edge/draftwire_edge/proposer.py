"""What turns the draft model's logits into guesses: the same parameters as the target's."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftwire_edge.drafter import Guess
from draftwire_edge.drafters.guess import draw_token, guess_token
from draftwire_protocol.grammar import GrammarState
from draftwire_protocol.messages import Scheme
from draftwire_protocol.noise import Purpose, uniform
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.processors import LogitsProcessors
from draftwire_protocol.proposal import certain
from draftwire_protocol.sampling import Float32Array


class Proposer:
    """Guesses of one generation, block by block.

    Args:
        sampling: the target's sampling parameters.
        scheme: how guesses are accepted.
        num_prompt: how many ids of a context are the prompt.
        eos_ids: ids that end a generation.
        grammar: what the output must match, at its start.
        sharpness: factor on the draft model's scores where tokens are drawn, > 0. A small model is less
            sure than a large one, so its best guess of the target's token is sharper than its own.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        scheme: Scheme = Scheme.COUPLED,
        num_prompt: int = 0,
        eos_ids: Collection[int] = (),
        grammar: GrammarState | None = None,
        sharpness: float = 1.0,
    ) -> None:
        self._sampling = sampling
        self._draws = scheme is not Scheme.COUPLED and not sampling.greedy
        self._sharpness = sharpness
        self._processors = LogitsProcessors(sampling, num_prompt, eos_ids, grammar)
        self._start = self._offset = 0

    def begin(self, context: Sequence[int]) -> None:
        """A block starts after this context, prompt and committed output."""
        self._processors.move_to(context)
        self._start, self._offset = len(context), 0

    def guess(self, logits: Float32Array) -> Guess:
        """The guess for the block's next place; later ones assume it.

        Args:
            logits: float32 ``[n_tokens]``, padding ids cut off; only read.

        Raises:
            DrafterError: the logits are not numbers.
        """
        row, sampling = self._processors(logits), self._sampling
        if self._draws:
            quantile = uniform(sampling.seed, self._start, self._offset, Purpose.DRAFT)
            guess = draw_token(row, sampling, quantile, self._sharpness)
        else:
            guess = guess_token(row, sampling, self._start + self._offset, self._sharpness)
        self._processors.assume(guess.token)
        self._offset += 1
        return guess

    def copied(self, token: int, confidence: float) -> Guess:
        """A guess that comes from no model, with how sure it is."""
        return Guess(token, confidence, certain(token) if self._draws else None, "lookup")
