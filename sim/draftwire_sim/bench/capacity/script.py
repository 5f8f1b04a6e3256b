"""A scripted drafter: the target's own text, each token wrong with a set chance.

Which positions are wrong is drawn once for a text, so that every arm is sent the same drafts. That is the
same as drawing anew at each guess: the position of a wrong guess is committed by the verdict that finds
it, and those behind it were not judged yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Script:
    """Guesses for one text.

    Args:
        truth: what the target writes alone, ``[n]``.
        acceptance: chance that a guess is right, in [0, 1].
        n_tokens: ids that a wrong guess is drawn from, >= 2.
        seed: draws which guesses are wrong, and what they are.
    """

    def __init__(self, truth: Sequence[int], acceptance: float, n_tokens: int, seed: str) -> None:
        draw = random.Random(seed)  # noqa: S311  # no secret
        self.guesses = tuple(
            token if draw.random() < acceptance else _other(token, n_tokens, draw) for token in truth
        )

    def block(self, written: int, gamma: int) -> tuple[int, ...]:
        """What is drafted behind ``written`` tokens; the last token of the text is left to the target.

        Args:
            written: tokens of the text that are committed.
            gamma: most tokens.
        """
        return self.guesses[written : min(written + gamma, len(self.guesses) - 1)]


def _other(token: int, n_tokens: int, draw: random.Random) -> int:
    """Any id but ``token``, each as likely."""
    return (token + draw.randrange(1, n_tokens)) % n_tokens
