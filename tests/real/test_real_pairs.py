"""Real models through the real service: the same tokens, fewer passes, small overheads."""

import json

import jsonschema  # type: ignore[import-untyped]  # its stubs are one more package
import pytest

from draftwire_edge.controller import GammaPolicy
from draftwire_edge.generation import GenerationRequest, GenerationResult
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from loop.harness import CLOUD_ALONE, connected, serving
from real.conftest import RealPair, load_pair

pytestmark = pytest.mark.real
#: The stop rule chooses gamma; the mode is fixed, since a busy machine may well make the cloud alone faster.
AUTO_GAMMA = GammaPolicy(mode=Mode.LOCKSTEP)


async def compare(
    pair: RealPair,
    prompts: list[str],
    sampling: SamplingParams,
    max_tokens: int,
    policy: GammaPolicy = AUTO_GAMMA,
) -> list[tuple[GenerationResult, GenerationResult]]:
    """Each prompt from the cloud alone and together."""
    both = []
    async with serving(pair.loaded) as server, connected(server, pair.loaded) as edge:
        for prompt in prompts:
            request = GenerationRequest(pair.encode(prompt), sampling, max_tokens)
            alone = await edge.write(request, None, CLOUD_ALONE)
            both.append((alone, await edge.write(request, pair.drafter, policy)))
    return both


def assert_equal(both: list[tuple[GenerationResult, GenerationResult]]) -> None:
    for alone, together in both:
        assert together.token_ids == alone.token_ids
        assert together.text == alone.text
        assert together.finish_reason is alone.finish_reason


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.7, top_p=0.9, seed=5)], ids=str)
async def test_default_pair_equals_cloud_alone_with_fewer_passes(
    coder: RealPair, questions: list[str], sampling: SamplingParams
) -> None:
    assert coder.loaded.card.exact_shapes
    both = await compare(coder, questions[:3], sampling, 32)
    assert_equal(both)
    passes = sum(together.timings.target_passes for _, together in both)
    tokens = sum(len(together.token_ids) for _, together in both)
    assert passes < 0.8 * tokens


async def test_default_pair_writes_json_that_follows_a_schema(coder: RealPair) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "legs": {"type": "integer"}},
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    request = GenerationRequest(
        coder.encode("Describe a spider as JSON with name and legs."),
        SamplingParams(0.7, top_p=0.9, seed=3),
        60,
        grammar=GrammarSpec("json_schema", json.dumps(schema)),
    )
    async with serving(coder.loaded) as server, connected(server, coder.loaded) as edge:
        alone = await edge.write(request, None, CLOUD_ALONE)
        together = await edge.write(request, coder.drafter, AUTO_GAMMA)
    assert_equal([(alone, together)])
    jsonschema.validate(json.loads(together.text), schema)
    assert together.timings.num_accepted_tokens > 0


async def test_default_pair_keeps_to_the_payload_budget(coder: RealPair, questions: list[str]) -> None:
    both = await compare(coder, questions[:1], SamplingParams(), 32, GammaPolicy(4, Mode.LOCKSTEP))
    timings = both[0][1].timings
    # 6 bytes a drafted token, 40 a message besides.
    assert timings.draft_bytes_per_token <= 6 + 40 * timings.num_drafts / timings.num_draft_tokens
    assert timings.draft_bytes_per_token <= 6


async def test_a_model_is_a_good_drafter_of_itself(smollm: RealPair, questions: list[str]) -> None:
    both = await compare(smollm, questions[:4], SamplingParams(), 48, GammaPolicy(4, Mode.LOCKSTEP))
    assert_equal(both)
    drafts = sum(together.timings.num_drafts for _, together in both)
    first_guesses = sum(together.timings.num_accepted_tokens_per_pos[0] for _, together in both)
    # Not 1: llama.cpp rounds activations to 8 bits before it multiplies them with 4-bit weights.
    assert first_guesses / drafts > 0.93


async def test_small_pair_equals_transformers_generate(smollm: RealPair, questions: list[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from draftwire_cloud.convert import converted_folder
    from draftwire_models.cache import ModelCache
    from draftwire_models.resolve import resolve_target

    folder = converted_folder(ModelCache.open(), resolve_target("smollm2-self"), "float32")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    both = await compare(smollm, questions[4:8], SamplingParams(), 32)
    for prompt, (_, together) in zip(questions[4:8], both, strict=True):
        ids = torch.tensor([smollm.encode(prompt)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
        assert list(together.token_ids) == out[0, ids.shape[1] :].tolist()


@pytest.mark.nightly
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
async def test_default_pair_on_many_prompts(questions: list[str], dtype: str) -> None:
    pair = load_pair("qwen2.5-coder", "bfloat16", dtype)  # type: ignore[arg-type]
    assert pair.loaded.card.exact_shapes
    assert len(questions) == 12
    assert_equal(await compare(pair, questions, SamplingParams(), 96))
    pair.drafter.close()
