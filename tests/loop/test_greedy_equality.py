"""Greedy: the tokens of `transformers` generate on the same target, for every gamma and drafter."""

from typing import Any

import numpy as np
import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_protocol.messages import Mode
from loop.harness import Edge, connected, serving
from tiny.pair import TinyPair

N_PROMPTS, MAX_TOKENS = 200, 32


@pytest.fixture(scope="module")
def prompts(tiny_pair: TinyPair) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(11)
    sizes = rng.integers(1, 40, N_PROMPTS)
    return [tuple(rng.integers(0, tiny_pair.config.n_tokens, size).tolist()) for size in sizes]


@pytest.fixture(scope="module")
def expected(tiny_pair: TinyPair, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """What transformers writes by itself, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_pair.target_folder, dtype=torch.float32)
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_TOKENS
        )
        texts.append(out[0, len(prompt) :].tolist())
    return texts


async def write_all(
    edge: Edge, prompts: list[tuple[int, ...]], drafter: Any, policy: GammaPolicy
) -> list[list[int]]:
    requests = [GenerationRequest(prompt, max_tokens=MAX_TOKENS) for prompt in prompts]
    return [list((await edge.write(request, drafter, policy)).token_ids) for request in requests]


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8, None])
async def test_together_equals_generate(
    loaded: LoadedTarget,
    drafters: dict[str, LlamaCppDrafter],
    prompts: list[tuple[int, ...]],
    expected: list[list[int]],
    gamma: int | None,
) -> None:
    policy = GammaPolicy(gamma, Mode.LOCKSTEP if gamma else None)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        assert await write_all(edge, prompts, drafters["noisy"], policy) == expected


@pytest.mark.parametrize("name", ["perfect", "poor", "useless", "ngram"])
async def test_any_drafter_equals_generate(
    loaded: LoadedTarget,
    drafters: dict[str, LlamaCppDrafter],
    prompts: list[tuple[int, ...]],
    expected: list[list[int]],
    name: str,
) -> None:
    drafter = NgramDrafter() if name == "ngram" else drafters[name]
    policy = GammaPolicy(4, Mode.LOCKSTEP)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        assert await write_all(edge, prompts[:60], drafter, policy) == expected[:60]


async def test_cloud_alone_equals_generate(
    loaded: LoadedTarget, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as edge:
        assert await write_all(edge, prompts, None, GammaPolicy(mode=Mode.CLOUD)) == expected
