"""A target and a draft model over a handful of tokens, whose texts can be enumerated.

Drawing goes through the real codec and the cloud's real session; ``test_schemes`` also draws through the
real service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import stats
from transformers.generation import logits_process

from draftwire_cloud.engine.packing import Span
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.session import CloudSession
from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.proposer import Proposer
from draftwire_protocol import codec
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.messages import Draft, EdgeMessage, Mode, Open, Scheme, Verdict
from draftwire_protocol.params import SamplingParams
from loop.scripted_target import ScriptedTarget, scripted

VOCABULARY = 5
PROMPT = (1, 2)
#: One token without a draft, then blocks of two: every kind of verdict happens.
LENGTH, GAMMA = 4, 2
#: Probability that a right scheme fails one test.
FALSE_ALARM = 1e-9


def target_row(ids: Sequence[int], width: int = VOCABULARY) -> np.ndarray:
    """The target's logits after these ids, from the last two; float32 ``[width]``."""
    return np.concatenate([_normals(7, *ids[-2:]) * 1.5, np.full(width - VOCABULARY, 9.0)]).astype(np.float32)


def draft_row(ids: Sequence[int]) -> np.ndarray:
    """The draft model's logits: related to the target's, and wrong."""
    return (target_row(ids) + _normals(8, *ids[-2:]) * 1.2).astype(np.float32)


@cache
def _normals(*seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=VOCABULARY)


class SmallTarget(ScriptedTarget):
    """``target_row`` behind the service; some padding ids have the largest logits."""

    def _rows(self, span: Span) -> torch.Tensor:
        span.slot.ids.extend(span.ids)
        ends = range(span.slot.length - span.num_logits + 1, span.slot.length + 1)
        rows = [target_row(span.slot.ids[:end], self.width) for end in ends]
        return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, self.width))


def small_target() -> LoadedTarget:
    """A loaded target over the small vocabulary, padded by three ids."""
    pieces = [bytes([97 + token]) for token in range(VOCABULARY)]
    loaded, target = scripted(pieces, [], prompt_length=len(PROMPT), pad=3, context_length=100)
    target.__class__ = SmallTarget
    return loaded


@dataclass
class SmallDrafter:
    """``draft_row`` behind the edge."""

    #: What happens to a block after it was drawn.
    edit: Callable[[list[Guess]], list[Guess]] = field(default=lambda block: block)
    name: str = "small"
    context_length: int = 100
    model_seconds: float = 0.0

    def prefill(self, context: Sequence[int]) -> None:
        """Nothing to read."""

    def draft(
        self,
        context: Sequence[int],
        proposer: Proposer,
        limit: int,
        want_more: WantMore,  # the length is fixed here
    ) -> list[Guess]:
        """Draws ``limit`` guesses."""
        proposer.begin(context)
        block: list[Guess] = []
        while len(block) < limit:
            block.append(proposer.guess(draft_row([*context, *(guess.token for guess in block)])))
        return self.edit(block)

    def close(self) -> None:
        """Nothing to free."""


def _sent(message: EdgeMessage) -> EdgeMessage:
    """A message as it arrives."""
    return codec.decode_edge(pb.DecodeRequest.FromString(codec.encode_edge(message).SerializeToString()))


def write(
    loaded: LoadedTarget,
    sampling: SamplingParams,
    scheme: Scheme,
    drafter: SmallDrafter,
    sharpness: float = 1.0,
) -> list[int]:
    """One text through codec and session, without sockets."""
    request = _sent(Open("s", PROMPT, sampling, LENGTH, Mode.LOCKSTEP, scheme=scheme))
    assert isinstance(request, Open)
    session = CloudSession(request, loaded.vocabulary, 100)
    proposer = Proposer(sampling, scheme, len(PROMPT), sharpness=sharpness)
    while not session.finished:
        if session.waiting:
            room = len(PROMPT) + LENGTH - len(session.ids)
            block = drafter.draft(session.ids, proposer, max(1, min(GAMMA, room - 1)), lambda _: True)
            proposals = tuple(guess.proposal for guess in block if guess.proposal)
            ids = tuple(guess.token for guess in block)
            session.receive(_sent(Draft(session.epoch, len(session.ids), ids, proposals)))
        work = session.next_work(len(session.ids) - 1)
        assert work is not None
        fed = [*session.ids[:-1], *work.ids]
        ends = range(len(fed) - work.num_logits + 1, len(fed) + 1)
        verdict = session.apply(np.stack([target_row(fed[:end], VOCABULARY + 3) for end in ends]))
        assert isinstance(verdict, Verdict)
    return session.ids[len(PROMPT) :]


def enumerated(sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of each text, by transformers' own processors and warpers."""
    chain: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        chain.append(logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(logits_process.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.typical_p < 1.0:
        chain.append(logits_process.TypicalLogitsWarper(sampling.typical_p))
    rows: dict[tuple[int, ...], np.ndarray] = {}
    chances: dict[tuple[int, ...], float] = {}
    for text in product(range(VOCABULARY), repeat=LENGTH):
        chance = 1.0
        for place, token in enumerate(text):
            if (before := text[:place]) not in rows:
                ids = [*PROMPT, *before]
                scores = torch.tensor(target_row(ids))[None]
                for one in chain:
                    scores = one(torch.tensor([ids]), scores)
                rows[before] = scores.double().softmax(-1)[0].numpy()
            chance *= float(rows[before][token])
        chances[text] = chance
    return chances


def p_value(texts: Sequence[Sequence[int]], chances: dict[tuple[int, ...], float]) -> float:
    """Chi-square of the last three tokens of the texts against their distribution.

    Cells that expect fewer than ten texts are put together; an impossible text gives 0.
    """
    expected: Counter[tuple[int, ...]] = Counter()
    for text, chance in chances.items():
        expected[text[-3:]] += chance * len(texts)  # type: ignore[assignment]  # Counter adds floats as well
    counts = Counter(tuple(text[-3:]) for text in texts)
    if any(expected[cell] < 1e-9 for cell in counts):
        return 0.0
    large = [cell for cell, number in expected.items() if number >= 10]
    seen = [counts[cell] for cell in large]
    wanted = [float(expected[cell]) for cell in large]
    seen.append(len(texts) - sum(seen))
    wanted.append(len(texts) - sum(wanted))
    if wanted[-1] < 1e-6:
        seen.pop()
        wanted.pop()
    return float(stats.chisquare(seen, wanted, sum_check=False).pvalue)
