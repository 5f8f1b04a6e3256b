"""From the target's rows to a verdict: processors, then the scheme's acceptance."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache

from draftwire_protocol.acceptance import Accepted, verify_block, verify_coupled, verify_rejection
from draftwire_protocol.chances import WarpedChances
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.grammar import GrammarState
from draftwire_protocol.messages import Draft, Open, Scheme, TokenLogprobs, check_top_logprobs
from draftwire_protocol.noise import Purpose, loud_tokens, position_key, uniform
from draftwire_protocol.processors import LogitsProcessors, check_ids
from draftwire_protocol.proposal import check_proposals
from draftwire_protocol.sampling import (
    Float32Array,
    chance_sum,
    choose_token,
    top_candidates,
)


class Judge:
    """Judges the blocks of one generation.

    Args:
        request: the Open message.
        n_tokens: number of real ids; logits from there on are padding.
        eos_ids: ids that end a generation.
        grammar: compiled from the request's, at its start.

    Raises:
        UserInputError: an id beyond the vocabulary, or too many log-probabilities.
    """

    def __init__(
        self, request: Open, n_tokens: int, eos_ids: Collection[int], grammar: GrammarState | None = None
    ) -> None:
        check_ids(request.sampling, n_tokens)
        check_top_logprobs(request.top_logprobs)
        self._sampling = request.sampling
        self._scheme = Scheme.COUPLED if request.sampling.greedy else request.scheme
        self._top_logprobs = request.top_logprobs
        self._n_tokens = n_tokens
        self._processors = LogitsProcessors(request.sampling, len(request.prompt_ids), eos_ids, grammar)

    @property
    def accepts_by_equality(self) -> bool:
        """Whether a drafted token stays when it is the target's own, and nothing is drawn for it."""
        return self._scheme is Scheme.COUPLED

    def check(self, draft: Draft) -> None:
        """Refuse a draft that does not belong to the scheme.

        Raises:
            ProtocolError: proposals are missing, broken, or there where none are needed.
        """
        if self._scheme is not Scheme.COUPLED:
            check_proposals(draft.ids, draft.proposals, self._n_tokens)
        elif draft.proposals:
            raise ProtocolError("proposals in a draft that is accepted by equality")

    @property
    def can_prepare(self) -> bool:
        """Whether ``prepare`` saves a verdict any work."""
        drawn_from_all = not (self._sampling.greedy or self._sampling.filtered)
        return drawn_from_all and self._scheme is Scheme.COUPLED

    def prepare(self, position: int) -> None:
        """Do the part of a position's verdict that needs no logits: its loud noise."""
        loud_tokens(position_key(self._sampling.seed, position), self._n_tokens)

    def judge(self, ids: Sequence[int], draft: Draft, rows: Float32Array) -> Accepted:
        """How much of the draft stays, and the target's own token after it.

        Args:
            ids: prompt and committed output.
            draft: cut to the rows at hand.
            rows: float32 ``[gamma + 1, n_vocab]``; row i follows i drafted tokens.

        Raises:
            NothingToWriteError: no token may follow what stays.
            BrokenLogitsError: the target's logits are not numbers.
        """
        block, sampling, start = draft.ids, self._sampling, len(ids)

        def row(offset: int) -> Float32Array:
            if self._processors.active:
                self._processors.move_to([*ids, *block[:offset]])
            return self._processors(rows[offset, : self._n_tokens])

        if self._scheme is Scheme.COUPLED:
            return verify_coupled(block, lambda i: choose_token(row(i), sampling, start + i))

        @cache
        def chances(offset: int) -> WarpedChances:
            return WarpedChances(row(offset), sampling, start + offset)

        def accepts(offset: int) -> float:
            return uniform(sampling.seed, start, offset, Purpose.ACCEPT)

        verify = verify_block if self._scheme is Scheme.BLOCK else verify_rejection
        return verify(block, draft.proposals, chances, accepts)

    def logprobs(self, rows: Float32Array, kept: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the committed tokens; nothing when none were asked for.

        Args:
            rows: as in ``judge``.
            kept: the tokens that came of it, ``[k]``, k <= gamma + 1.
        """
        if self._top_logprobs is None:
            return ()
        rows = rows[: len(kept), : self._n_tokens]
        return tuple(
            token_logprobs(row, token, self._top_logprobs) for row, token in zip(rows, kept, strict=True)
        )


def token_logprobs(logits: Float32Array, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of one row at the token, and of its ``count`` likeliest ids.

    Args:
        logits: float32 ``[n_tokens]``, as the target gave them.
        token: the committed id.
        count: how many likeliest ids, 0 for none.
    """
    highest = float(logits.max())
    log_norm = highest + math.log(chance_sum(logits, highest, 1.0))
    top = top_candidates(logits, max(count, 1))
    pairs = zip(top.ids[:count].tolist(), (top.scores[:count] - log_norm).tolist(), strict=True)
    return TokenLogprobs(float(logits[token]) - log_norm, tuple(pairs))
