"""The rejection schemes keep the target's distribution, and every known way to break it is caught.

Each positive test fails by chance with probability ``FALSE_ALARM``; seeds are fixed, so it either always
does or never. Each negative control switches one bug on and must be caught at the same threshold.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwire_cloud.judge import Judge
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafter import Guess
from draftwire_edge.drafters import guess as guess_module
from draftwire_edge.generation import GenerationRequest
from draftwire_protocol import acceptance, noise, proposal
from draftwire_protocol.chances import WarpedChances
from draftwire_protocol.messages import Mode, Scheme
from draftwire_protocol.noise import Float64Array, Purpose
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.processors import LogitsProcessors
from draftwire_protocol.proposal import Proposal
from draftwire_protocol.sampling import Candidates
from loop.harness import connected, serving
from loop.small_world import (
    FALSE_ALARM,
    GAMMA,
    LENGTH,
    PROMPT,
    VOCABULARY,
    SmallDrafter,
    enumerated,
    p_value,
    small_target,
    write,
)
from protocol.dense import dense

PLAIN = SamplingParams(1.0)
WARPED = SamplingParams(0.8, top_k=4, top_p=0.93, typical_p=0.95)
PENALISED = SamplingParams(0.9, repetition_penalty=2.5)
#: Enough to catch every bug below; the nightly test draws 20,000 through the service.
DRAWS = 4_000
BY_CHANCE = [Scheme.REJECTION, Scheme.BLOCK]


def draws(
    sampling: SamplingParams,
    scheme: Scheme,
    count: int,
    drafter: SmallDrafter | None = None,
    sharpness: float = 1.0,
) -> list[list[int]]:
    """Texts of as many seeds, through codec and session."""
    loaded = small_target()
    return [
        write(loaded, replace(sampling, seed=seed), scheme, drafter or SmallDrafter(), sharpness)
        for seed in range(count)
    ]


@pytest.mark.parametrize("sampling", [PLAIN, WARPED, PENALISED])
@pytest.mark.parametrize("scheme", Scheme)
def test_texts_follow_the_target_distribution(scheme: Scheme, sampling: SamplingParams) -> None:
    assert p_value(draws(sampling, scheme, DRAWS), enumerated(sampling)) > FALSE_ALARM


@pytest.mark.parametrize("scheme", BY_CHANCE)
def test_sharpened_drafts_leave_the_distribution_alone(scheme: Scheme) -> None:
    texts = draws(PLAIN, scheme, DRAWS, sharpness=2.5)
    assert p_value(texts, enumerated(PLAIN)) > FALSE_ALARM
    assert texts[:100] != draws(PLAIN, scheme, 100)


def test_sharpened_drafts_leave_coupled_texts_alone() -> None:
    plain = draws(WARPED, Scheme.COUPLED, 200)
    assert all(draws(WARPED, Scheme.COUPLED, 200, sharpness=by) == plain for by in (0.3, 2.5))


async def _by_service(scheme: Scheme, sampling: SamplingParams, count: int) -> list[Sequence[int]]:
    loaded = small_target()
    request = GenerationRequest(PROMPT, max_tokens=LENGTH, scheme=scheme)
    policy = GammaPolicy(GAMMA, Mode.LOCKSTEP)
    texts = []
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for seed in range(count):
            one = replace(request, sampling=replace(sampling, seed=seed))
            texts.append((await edge.write(one, SmallDrafter(), policy)).token_ids)
    return list(texts)


@pytest.mark.parametrize("scheme", BY_CHANCE)
async def test_the_service_draws_the_same_texts(scheme: Scheme) -> None:
    # Seed by seed the very texts of the test above, so its statistics hold through the wire.
    assert [list(text) for text in await _by_service(scheme, WARPED, 400)] == draws(WARPED, scheme, 400)


@pytest.mark.nightly
@pytest.mark.parametrize("sampling", [WARPED, PENALISED])
@pytest.mark.parametrize("scheme", BY_CHANCE)
async def test_texts_of_the_service_follow_the_target_distribution(
    scheme: Scheme, sampling: SamplingParams
) -> None:
    texts = await _by_service(scheme, sampling, 20_000)
    assert p_value(texts, enumerated(sampling)) > FALSE_ALARM


def test_coarse_weights_are_exact_as_long_as_rounding_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal, "MAX_WEIGHT", 5)
    assert p_value(draws(PLAIN, Scheme.REJECTION, DRAWS), enumerated(PLAIN)) > FALSE_ALARM


def _draw_before_rounding(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    """Weights as coarse as above, but the token is drawn from the exact q."""
    exact: dict[Proposal, Float64Array] = {}

    def remembered(candidates: Candidates) -> Proposal:
        chances = np.exp(candidates.scores - candidates.scores[0])
        rough = np.maximum(1, np.rint(chances / chances.sum() * 5)).astype(np.int64)
        made = Proposal(tuple(candidates.ids.tolist()), tuple(rough.tolist()))
        exact[made] = chances
        return made

    def drawn(self: Proposal, quantile: float) -> int:
        reached = np.cumsum(exact[self])
        return self.ids[int(np.searchsorted(reached, quantile * reached[-1]))]

    monkeypatch.setattr(guess_module, "proposal_from", remembered)
    monkeypatch.setattr(Proposal, "draw", drawn)
    return SmallDrafter()


def _softmax_the_residual(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    right = WarpedChances.redraw

    def softmax(self: WarpedChances, q: Proposal | None = None, scale: float = 1.0) -> int:
        if q is None:
            return right(self)
        rest = acceptance.residual(self.of(range(VOCABULARY)), dense(q, VOCABULARY), scale)
        return int(np.argmax(rest + noise.gumbel_noise(self._key, np.arange(VOCABULARY))))

    monkeypatch.setattr(WarpedChances, "redraw", softmax)
    return SmallDrafter()


def _reuse_the_draft_noise(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    """The residual is drawn at the quantile that drew the draft."""
    right_uniform, right_redraw = noise.uniform, WarpedChances.redraw
    rejected_at = (0, 0, 0)

    def remembered(seed: int, start: int, offset: int, purpose: Purpose) -> float:
        nonlocal rejected_at
        rejected_at = seed, start, offset
        return right_uniform(seed, start, offset, purpose)

    def reused(self: WarpedChances, q: Proposal | None = None, scale: float = 1.0) -> int:
        if q is None:
            return right_redraw(self)
        rest = acceptance.residual(self.of(range(VOCABULARY)), dense(q, VOCABULARY), scale)
        reached = np.cumsum(rest)
        quantile = right_uniform(*rejected_at, Purpose.DRAFT)
        return int(np.searchsorted(reached, quantile * reached[-1]))

    monkeypatch.setattr("draftwire_cloud.judge.uniform", remembered)
    monkeypatch.setattr(WarpedChances, "redraw", reused)
    return SmallDrafter()


def _redraw_from_the_next_row(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    def wrong(
        draft: Sequence[int],
        proposals: Sequence[Proposal],
        target_row: acceptance.TargetRow,
        uniform: acceptance.Uniform,
    ) -> acceptance.Accepted:
        accepted, token = acceptance.verify_rejection(draft, proposals, target_row, uniform)
        if accepted < len(draft):
            token = target_row(accepted + 1).redraw(proposals[accepted])
        return acceptance.Accepted(accepted, token)

    monkeypatch.setattr("draftwire_cloud.judge.verify_rejection", wrong)
    return SmallDrafter()


def _count_penalties_once_a_block(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    class OnceABlock(LogitsProcessors):
        settled = False

        def move_to(self, ids: Sequence[int]) -> None:
            if not self.settled:
                super().move_to(ids)
            self.settled = True

    right = Judge.judge

    def unsettled(self: Judge, *block: Any) -> acceptance.Accepted:
        self._processors.settled = False  # type: ignore[attr-defined]  # the class above
        return right(self, *block)

    monkeypatch.setattr(Judge, "judge", unsettled)
    monkeypatch.setattr("draftwire_cloud.judge.LogitsProcessors", OnceABlock)
    return SmallDrafter()


def _drop_unlikely_tokens(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:  # noqa: ARG001  # as the others
    def dropped(block: list[Guess]) -> list[Guess]:
        for place, guess in enumerate(block):
            if guess.proposal and guess.proposal.probability(guess.token) < 0.3:
                return block[:place]
        return block

    return SmallDrafter(dropped)


def _draft_the_argmax(monkeypatch: pytest.MonkeyPatch) -> SmallDrafter:
    monkeypatch.setattr(Proposal, "draw", lambda self, _: self.ids[int(np.argmax(self.weights))])
    return SmallDrafter()


Bug = Callable[[pytest.MonkeyPatch], SmallDrafter]
BUGS: list[tuple[Bug, SamplingParams]] = [
    (_draw_before_rounding, PLAIN),
    (_softmax_the_residual, PLAIN),
    (_reuse_the_draft_noise, PLAIN),
    (_redraw_from_the_next_row, PLAIN),
    (_count_penalties_once_a_block, PENALISED),
    (_drop_unlikely_tokens, PLAIN),
    (_draft_the_argmax, PLAIN),
]


@pytest.mark.parametrize(("bug", "sampling"), BUGS, ids=[bug.__name__[1:] for bug, _ in BUGS])
def test_each_bug_is_caught(
    bug: Bug,
    sampling: SamplingParams,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = bug(monkeypatch)
    texts = draws(sampling, Scheme.REJECTION, DRAWS, drafter)
    assert p_value(texts, enumerated(sampling)) < FALSE_ALARM


@pytest.mark.parametrize("scheme", BY_CHANCE)
def test_greedy_needs_no_proposals_and_equals_the_argmax(scheme: Scheme) -> None:
    greedy = SamplingParams(repetition_penalty=1.3)
    assert draws(greedy, scheme, 1) == draws(greedy, Scheme.COUPLED, 1)
