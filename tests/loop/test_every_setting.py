"""Every sampling option at once: together equals alone, and alone is what transformers writes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwire_cloud.judge import Judge
from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.proposer import Proposer
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.messages import Mode, Scheme
from draftwire_protocol.params import SamplingParams
from loop.harness import connected, serving
from tiny.pair import TinyPair

N_TOKENS = 269
TOKENS = st.integers(0, N_TOKENS - 1)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    top_k=st.sampled_from([0, 3, 60]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**64 - 1),
    typical_p=st.sampled_from([1.0, 0.9, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.2, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-5.0, 3.0]), max_size=3).map(
        lambda d: tuple(d.items())
    ),
    min_tokens=st.sampled_from([0, 8]),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple),
)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=30).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    PROMPTS, SAMPLING, st.integers(1, 9), st.integers(1, 24), st.sampled_from(["perfect", "noisy", "ngram"])
)
async def test_coupled_together_equals_alone_at_every_setting(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter],
    prompt: tuple[int, ...], sampling: SamplingParams, gamma: int, max_tokens: int, name: str,
) -> None:  # fmt: skip
    request = GenerationRequest(prompt, sampling, max_tokens)
    drafter = NgramDrafter() if name == "ngram" else drafters[name]
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = await edge.write(request)
        together = await edge.write(request, drafter, GammaPolicy(gamma, Mode.LOCKSTEP))
    assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
    assert together.finish_reason is alone.finish_reason
    assert together.usage.completion_tokens == len(together.token_ids) <= max_tokens


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROMPTS, SAMPLING, st.integers(1, 9), st.sampled_from([Scheme.REJECTION, Scheme.BLOCK]))
async def test_schemes_without_temperature_equal_the_greedy_text(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter],
    prompt: tuple[int, ...], sampling: SamplingParams, gamma: int, scheme: Scheme,
) -> None:  # fmt: skip
    request = GenerationRequest(prompt, replace(sampling, temperature=0.0), 20)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        alone = await edge.write(request)
        policy = GammaPolicy(gamma, Mode.LOCKSTEP)
        together = await edge.write(replace(request, scheme=scheme), drafters["noisy"], policy)
    assert together.token_ids == alone.token_ids


@pytest.fixture(scope="module")
def model(tiny_pair: TinyPair) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_pair.target_folder, dtype=torch.float32)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"min_tokens": 12}, {"min_new_tokens": 12}),
        ({"bad_words": ((97,), (98, 99))}, {"bad_words_ids": [[97], [98, 99]]}),
        ({"logit_bias": ((100, 4.0),)}, {"sequence_bias": {(100,): 4.0}}),
        (
            {"repetition_penalty": 1.2, "min_tokens": 9, "bad_words": ((120, 121), (50,))},
            {"repetition_penalty": 1.2, "min_new_tokens": 9, "bad_words_ids": [[120, 121], [50]]},
        ),
    ],
)
async def test_greedy_with_processors_equals_generate(
    model: Any, loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter],
    ours: dict[str, Any], theirs: dict[str, Any],
) -> None:  # fmt: skip
    rng = np.random.default_rng(3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for size in rng.integers(1, 40, 20):
            prompt = tuple(rng.integers(0, N_TOKENS, size).tolist())
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, **theirs
            )
            request = GenerationRequest(prompt, SamplingParams(**ours), 24)
            together = await edge.write(request, drafters["noisy"], GammaPolicy(4, Mode.LOCKSTEP))
            assert list(together.token_ids) == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(1.0, top_p=0.8, repetition_penalty=1.2)]
)
async def test_logprobs_are_those_of_plain_decoding(
    model: Any, loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter],
    scheme: Scheme, sampling: SamplingParams,
) -> None:  # fmt: skip
    prompt = tuple(range(60, 90))
    request = GenerationRequest(prompt, sampling, 30, scheme=scheme, top_logprobs=5)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        result = await edge.write(request, drafters["noisy"], GammaPolicy(4, Mode.LOCKSTEP))
    ids = torch.tensor([[*prompt, *result.token_ids]])
    with torch.no_grad():
        rows = model(ids).logits[0, len(prompt) - 1 : -1, :N_TOKENS].double().log_softmax(-1)
    assert result.timings.num_accepted_tokens > 0
    assert len(result.logprobs) == len(result.token_ids)
    for row, token, found in zip(rows, result.token_ids, result.logprobs, strict=True):
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert [value for _, value in found.top] == pytest.approx(row.topk(5).values.tolist(), abs=1e-4)
        assert all(float(row[one]) == pytest.approx(value, abs=1e-4) for one, value in found.top)


@pytest.mark.parametrize(
    ("sampling", "option"),
    [
        (SamplingParams(logit_bias=((5000, 1.0),)), "--logit-bias"),
        (SamplingParams(bad_words=((5000,),)), "--bad-word"),
    ],
)
async def test_ids_the_target_does_not_have_are_refused_by_name(
    loaded: LoadedTarget, sampling: SamplingParams, option: str
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as edge:
        with pytest.raises(DraftwireError, match=option):
            await edge.write(GenerationRequest((60, 61), sampling, 5))
        # The service goes on.
        assert (await edge.write(GenerationRequest((60, 61), max_tokens=5))).token_ids


def test_a_branch_with_nothing_to_write_ends_the_block(drafters: dict[str, LlamaCppDrafter]) -> None:
    everything = SamplingParams(bad_words=tuple((token,) for token in range(N_TOKENS)), min_tokens=3)
    assert drafters["noisy"].draft([60, 61], Proposer(everything, num_prompt=2), 4, lambda _: True) == []
    # And the drafter goes on.
    assert len(drafters["noisy"].draft([60, 61], Proposer(SamplingParams()), 4, lambda _: True)) == 4


async def test_a_verdict_that_breaks_ends_its_own_text(
    loaded: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Judge.judge

    def broken(self: Judge, ids: list[int], *rest: Any) -> Any:
        if ids[0] == 66:
            raise IndexError("nobody thought of this")
        return right(self, ids, *rest)

    monkeypatch.setattr(Judge, "judge", broken)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        with pytest.raises(DraftwireError, match="nobody thought of this"):
            await edge.write(GenerationRequest((66, 61), max_tokens=5))
        assert (await edge.write(GenerationRequest((60, 61), max_tokens=5))).token_ids


async def test_nothing_left_to_write_ends_this_text_only(loaded: LoadedTarget) -> None:
    everything = SamplingParams(bad_words=tuple((token,) for token in range(N_TOKENS)), min_tokens=3)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        with pytest.raises(DraftwireError, match="no token to write"):
            await edge.write(GenerationRequest((60, 61), everything, 5))
        assert (await edge.write(GenerationRequest((60, 61), max_tokens=5))).token_ids
