"""Real models through the real service: the same tokens, fewer passes, small overheads."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # its stubs are one more package
import pytest

from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafters.cross_vocab import CrossVocabDrafter
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.generation import GenerationRequest, GenerationResult
from draftwire_edge.target_tokenizer import fetch_tokenizer
from draftwire_models.resolve import resolve_draft, resolve_target
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from loop.harness import CLOUD_ALONE, connected, serving
from real.conftest import RealPair, load_pair

pytestmark = pytest.mark.real
#: Those of the benchmarks.
MANY_PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"
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


def _object(**properties: dict[str, object]) -> dict[str, object]:
    """A schema of an object with just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


#: What to ask, and a schema that every answer follows; none allows a text without end.
JSON_TASKS = [
    (
        "Describe an animal of your choice as JSON.",
        _object(
            name={"type": "string", "maxLength": 20}, legs={"type": "integer", "minimum": 0, "maximum": 750}
        ),
    ),
    (
        "Invent a person, as JSON.",
        _object(
            name={"type": "string", "maxLength": 24},
            age={"type": "integer", "minimum": 0, "maximum": 120},
            languages={"type": "array", "items": {"enum": ["en", "de", "fr", "hi", "zh"]}, "maxItems": 3},
        ),
    ),
    (
        "Give one step of a recipe for pancakes, as JSON.",
        _object(
            text={"type": "string", "maxLength": 60},
            optional={"type": "boolean"},
            amount=_object(
                value={"type": "number", "minimum": 0, "maximum": 500}, unit={"enum": ["g", "ml"]}
            ),
        ),
    ),
    (
        "Is the sky blue? Answer as JSON.",
        _object(
            answer={"enum": ["yes", "no", "sometimes"]},
            why={"anyOf": [{"type": "string", "maxLength": 50}, {"type": "null"}]},
        ),
    ),
]


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 51), marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("prompt", "schema"), JSON_TASKS, ids=["animal", "person", "recipe", "sky"])
async def test_default_pair_writes_json_that_follows_a_schema(
    coder: RealPair, prompt: str, schema: dict[str, object], seeds: range
) -> None:
    accepted = 0
    async with serving(coder.loaded) as server, connected(server, coder.loaded) as edge:
        for seed in seeds:
            request = GenerationRequest(
                coder.encode(prompt),
                SamplingParams(1.0, seed=seed),
                200,
                grammar=GrammarSpec("json_schema", json.dumps(schema)),
            )
            alone = await edge.write(request, None, CLOUD_ALONE)
            together = await edge.write(request, coder.drafter, AUTO_GAMMA)
            assert_equal([(alone, together)])
            assert together.finish_reason is FinishReason.STOP
            jsonschema.validate(json.loads(together.text), schema)
            accepted += together.timings.num_accepted_tokens
    assert accepted > 0


async def test_a_small_model_of_another_family_drafts_by_its_text(
    coder: RealPair, questions: list[str]
) -> None:
    request = GenerationRequest(coder.encode(questions[0]), SamplingParams(0.7, top_p=0.9, seed=4), 32)
    async with serving(coder.loaded) as server, connected(server, coder.loaded) as edge:
        target = await fetch_tokenizer(edge.channel, coder.loaded.card)
        assert target.encode(questions[0], add_special=True, parse_special=True) == (
            coder.drafter.tokenizer.encode(questions[0], add_special=True, parse_special=True)
        )
        inner = LlamaCppDrafter(resolve_draft("smollm2-self"), context_length=2048)
        foreign = CrossVocabDrafter(inner, target)
        try:
            alone = await edge.write(request, None, CLOUD_ALONE)
            together = await edge.write(request, foreign, GammaPolicy(3, Mode.LOCKSTEP))
        finally:
            foreign.close()
    assert_equal([(alone, together)])
    assert together.timings.num_accepted_tokens > 3


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
async def test_default_pair_on_many_prompts(dtype: str) -> None:
    pair = load_pair("qwen2.5-coder", "bfloat16", dtype)  # type: ignore[arg-type]
    assert pair.loaded.card.exact_shapes
    prompts = [json.loads(line)["prompt"] for line in MANY_PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert len(prompts) == 20
    for offset, sampling in enumerate([SamplingParams(), SamplingParams(1.0, seed=9)]):
        assert_equal(await compare(pair, prompts[offset::2], sampling, 128))
    pair.drafter.close()
