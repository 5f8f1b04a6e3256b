"""One generation as the cloud sees it: committed ids, the draft at hand, what to run next.

Pure: no clock, no socket, no torch. The service puts messages in, the scheduler asks for work and
hands back target rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np

from draftwire_cloud.judge import Judge
from draftwire_cloud.lookahead import Lookahead
from draftwire_protocol.commit import FinishReason, Transcript
from draftwire_protocol.errors import ContextOverflowError, ProtocolError, StaleDraftError
from draftwire_protocol.grammar import GrammarState
from draftwire_protocol.messages import (
    MAX_DRAFT_TOKENS,
    Cancel,
    CloudMessage,
    Draft,
    EdgeMessage,
    Finished,
    Mode,
    Open,
    SetMode,
    Usage,
    Verdict,
)
from draftwire_protocol.sampling import Float32Array

#: Tokens that an edge's chances are believed without proof.
_PRIOR = 2.0
#: Epochs are 32 bits wide, and a rejected draft starts the next one.
_MAX_EPOCH = 2**32 - 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a session needs to know of the target's tokens."""

    #: Bytes of every real id, ``[n_tokens]``.
    pieces: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]

    @property
    def n_tokens(self) -> int:
        """Number of real ids; logits from here on are padding."""
        return len(self.pieces)


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens to run through the target in one step."""

    #: Fed after the ``cached`` tokens the KV holds, ``[n]``.
    ids: list[int]
    #: How many of the last rows' logits are wanted; 0 in the middle of a prompt.
    num_logits: int


class CloudSession:
    """State of one generation.

    Args:
        request: the Open message.
        vocabulary: of the target.
        context_length: of the target, in tokens.
        grammar: compiled from the request's.

    Raises:
        ContextOverflowError: the prompt leaves no room for one token.
        ProtocolError: an id out of range, no session id.
        UserInputError: a parameter that this vocabulary cannot follow.
    """

    def __init__(
        self,
        request: Open,
        vocabulary: Vocabulary,
        context_length: int,
        grammar: GrammarState | None = None,
    ) -> None:
        _check_ids(request.prompt_ids + request.committed_ids, vocabulary.n_tokens)
        if not request.session_id or not request.prompt_ids:
            raise ProtocolError("Open needs a session_id and at least one prompt id")
        room = context_length - len(request.prompt_ids)
        if room < 1:
            raise ContextOverflowError(
                f"the prompt has {len(request.prompt_ids)} tokens and the context {context_length}; "
                f"shorten the prompt to at most {context_length - 1} tokens"
            )
        self.request = request
        self.mode = request.mode
        self.usage = Usage(prompt_tokens=len(request.prompt_ids))
        self._vocabulary = vocabulary
        self._judge = Judge(request, vocabulary.n_tokens, vocabulary.eos_ids, grammar)
        self._check_mode(request.mode)
        self._transcript = Transcript(
            vocabulary.pieces,
            vocabulary.special_ids,
            vocabulary.eos_ids,
            request.stop,
            min(request.max_tokens, room),
        )
        self._transcript.commit(request.committed_ids)
        self.ids = [*request.prompt_ids, *self._transcript.ids]
        self._last_verdict: tuple[Draft, Verdict] | None = None
        #: Epoch, start and ids of every draft that has its verdict.
        self._judged: set[tuple[int, int, tuple[int, ...]]] = set()
        # Where the text ended when the edge was last waited for; in cloud mode it goes on from there.
        self._waited_at = 0
        self._longest_draft = self._prepared_to = 0
        #: Blocks that ended at a wrong token.
        self._num_missed = 0
        #: Of tested tokens where the edge drafts on: those that stayed, and the sum of their chances.
        self._num_kept, self._promised = 0, 0.0
        self._prepares = True
        # Where the edge waits for each verdict: its block. Where it drafts on: what it is ahead.
        self._draft: Draft | None = None
        self._lookahead = Lookahead()
        # The first token needs no draft: the prompt's last row decides it.
        self._owes_token = True
        self._in_target: Draft | None = None

    @property
    def capacity(self) -> int:
        """KV entries this generation can need at most, in tokens."""
        return len(self.ids) + self._transcript.room

    @property
    def epoch(self) -> int:
        """Lowest epoch of a draft that may still be good."""
        return self._lookahead.epoch

    @property
    def finished(self) -> bool:
        """Whether the text is complete or cancelled."""
        return self._transcript.finish_reason is not None

    @property
    def waiting(self) -> bool:
        """Whether nothing happens until the edge says something."""
        return self._next_draft() is None and not self.finished

    @property
    def finish_message(self) -> Finished:
        """The last message of the stream."""
        reason = self._transcript.finish_reason or FinishReason.CANCELLED
        return Finished(reason, replace(self.usage, completion_tokens=len(self._transcript.ids)))

    def receive(self, message: EdgeMessage) -> list[CloudMessage]:
        """Take in a message; the answer is empty unless it is known at once.

        Raises:
            ProtocolError: a second Open, an id out of range, a block too long, proposals that do not fit.
            StaleDraftError: a draft that starts beyond the committed text.
        """
        match message:
            case Draft():
                return self._receive_draft(message)
            case SetMode():
                return self._set_mode(message.mode)
            case Cancel():
                self._transcript.finish_reason = self._transcript.finish_reason or FinishReason.CANCELLED
                return []
            case Open():
                raise ProtocolError("a second Open on one stream")

    def _receive_draft(self, draft: Draft) -> list[CloudMessage]:
        _check_ids(draft.ids, self._vocabulary.n_tokens)
        if len(draft.ids) > MAX_DRAFT_TOKENS:
            raise ProtocolError(f"a block of {len(draft.ids)} tokens; at most {MAX_DRAFT_TOKENS}")
        if draft.epoch > _MAX_EPOCH:
            raise ProtocolError(f"epoch {draft.epoch}; at most {_MAX_EPOCH}")
        self._judge.check(draft)
        self._longest_draft = max(self._longest_draft, len(draft.ids))
        if self.mode.drafts_on:
            self._lookahead.receive(draft, len(self.ids))
            asks = not draft.ids and draft.start == len(self.ids) and draft.epoch >= self.epoch
            self._owes_token = self._owes_token or asks
            return []
        if self._last_verdict and self._last_verdict[0] == draft:
            return [self._last_verdict[1]]
        if draft.start > len(self.ids) or self._answers_nothing(draft):
            raise StaleDraftError(f"draft starts at {draft.start}, the text ends at {len(self.ids)}")
        if draft.start == len(self.ids) and draft.epoch >= self.epoch and not self.finished:
            self._draft = draft
        return []

    def _answers_nothing(self, draft: Draft) -> bool:
        """Whether the edge writes behind a place it has reached already, and would wait for ever.

        Not so when the draft is a late copy, of a branch that is dead by now, or was overtaken by what
        the cloud wrote alone: then the verdicts that the edge needs are on their way.
        """
        is_behind = draft.start < self._waited_at and draft.epoch >= self.epoch
        return is_behind and (draft.epoch, draft.start, draft.ids) not in self._judged

    def _set_mode(self, mode: Mode) -> list[CloudMessage]:
        self._check_mode(mode)
        if mode is Mode.LOCKSTEP and self.mode is not mode:
            self._owes_token = True  # its verdict tells the edge that the cloud waits from here on
        self.mode = mode
        return []

    def _check_mode(self, mode: Mode) -> None:
        if mode.drafts_on and not self._judge.accepts_by_equality:
            raise ProtocolError(f"mode {mode.value} needs drafts that are accepted by equality")

    def _next_draft(self) -> Draft | None:
        """What to judge next, perhaps nothing but the target's own token; None to wait for the edge."""
        if self.finished or self._draft is not None:
            return None if self.finished else self._draft
        block = self._lookahead.usable(self.ids, min(MAX_DRAFT_TOKENS, self._transcript.room - 1))
        if block or self._owes_token or self.mode.fills:
            return Draft(self.epoch, len(self.ids), block)
        return None

    @property
    def can_prepare(self) -> bool:
        """Whether there is something to do while the edge is waited for."""
        reach = len(self.ids) + self._longest_draft
        return self._prepares and self.waiting and self._prepared_to <= reach and self._judge.can_prepare

    def prepare(self) -> None:
        """Do one more position's part of the next verdict; once that fails, no more is prepared."""
        position = max(self._prepared_to, len(self.ids))
        try:
            self._judge.prepare(position)
        except Exception:
            self._prepares = False  # the verdict does it all, and says what is wrong
            raise
        self._prepared_to = position + 1

    @property
    def block(self) -> tuple[int, ...] | None:
        """The drafted tokens to judge next, none for the target's own token; None to wait for the edge."""
        draft = self._next_draft()
        return None if draft is None else draft.ids[: max(self._transcript.room - 1, 0)]

    @property
    def only_fills(self) -> bool:
        """Whether the next token is one that the cloud writes because no draft is there."""
        return self.mode is Mode.DUPLEX and self.block == () and not self._owes_token

    @property
    def acceptance(self) -> float:
        """α: of the drafted tokens that were tested so far, the share that stayed; two of three before.

        Those behind a wrong one were not tested: they say nothing of the next token's chance.
        """
        return (self.usage.num_accepted_tokens + 2) / (self.usage.num_accepted_tokens + self._num_missed + 3)

    @property
    def survivals(self) -> list[float]:
        """For each token of the block the chance that it stays, as the edge or the past sees it."""
        block = self.block or ()
        if not self.mode.drafts_on or self._draft is not None:
            return [self.acceptance ** (i + 1) for i in range(len(block))]
        # What the edge says is taken as far as it has proved true, or it could take its neighbours' places.
        trust = min(1.0, (self._num_kept + _PRIOR) / (self._promised + _PRIOR))
        chances = self._lookahead.chances(len(block), self.acceptance)
        return list(accumulate((trust * chance for chance in chances), mul))

    def next_work(
        self, cached: int, most_read: int = 512, most_drafted: int = MAX_DRAFT_TOKENS
    ) -> Work | None:
        """What to run next; None while the session waits for the edge.

        Args:
            cached: KV entries at hand, a prefix of ``ids`` and at most ``len(ids) - 1``.
            most_read: tokens to feed at most while the prompt is being read.
            most_drafted: drafted tokens to judge at most. Where drafts are accepted by probability, it must
                not depend on the values of tokens that are not decided yet.
        """
        self._in_target = draft = self._next_draft()
        if draft is None:
            return None
        block = draft.ids[: max(min(self._transcript.room - 1, most_drafted), 0)]
        pending = self.ids[cached:]
        if len(pending) > most_read:
            return Work(pending[:most_read], 0)
        return Work([*pending, *block], len(block) + 1)

    def apply(self, rows: Float32Array) -> Verdict:
        """Judge the draft by the target's logits and commit (DESIGN: verify, cut, commit, emit).

        Args:
            rows: float32 ``[gamma + 1, n_vocab]``; row i follows i drafted tokens.
        """
        draft = self._in_target
        if draft is None:
            raise ProtocolError("a verdict without a draft")
        # 1. Verify what fits.
        gamma, start = min(len(draft.ids), len(rows) - 1), len(self.ids)
        block = draft.ids[:gamma]
        fitting = replace(draft, ids=block, proposals=draft.proposals[:gamma])
        accepted, token = self._judge.judge(self.ids, fitting, rows)
        # 2. Cut at the end of the text and commit.
        kept = self._transcript.commit([*block[:accepted], token]).ids
        self.ids.extend(kept)
        # 3. Count after truncation, and answer.
        num_accepted = min(accepted, len(kept))
        self._count(min(len(block), len(kept)) if self.finished else len(block), num_accepted)
        if accepted < gamma:
            self._num_missed += 1
        if self.mode.drafts_on:
            tested = min(accepted + 1, gamma)
            self._promised += sum(self._lookahead.chances(tested, self.acceptance))
            self._num_kept += accepted
        if accepted < gamma:
            self._lookahead.kill(draft.epoch)
        verdict = Verdict(
            draft.epoch, start, num_accepted, tuple(kept[num_accepted:]), self.mode,
            logprobs=self._judge.logprobs(rows, kept), num_drafted=gamma,
        )  # fmt: skip
        # 4. Remember what was asked, so that late copies are known.
        if not self.mode.drafts_on:
            self._last_verdict = (draft, verdict)
            self._judged.add((draft.epoch, draft.start, draft.ids))
        self._in_target, self._draft, self._owes_token = None, None, False
        if not self.mode.fills or self.finished:
            self._waited_at = len(self.ids)
        return verdict

    def _count(self, drafted: int, accepted: int) -> None:
        usage = self.usage
        self.usage = replace(
            usage,
            target_passes=usage.target_passes + 1,
            num_draft_tokens=usage.num_draft_tokens + drafted,
            num_accepted_tokens=usage.num_accepted_tokens + accepted,
        )


def _check_ids(ids: Sequence[int], n_tokens: int) -> None:
    """Refuse ids the vocabulary does not have."""
    if ids and int(np.max(ids)) >= n_tokens:
        raise ProtocolError(f"token id {max(ids)} is not in the target's vocabulary of {n_tokens}")
