"""Constrained output: always well formed, the same together and alone, whatever the drafter proposes."""

import json
import re
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]  # its stubs are one more package
import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.controller import GammaPolicy
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.ngram import NgramDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import Mode, Scheme
from draftwire_protocol.params import SamplingParams
from loop.harness import connected, serving

#: Every text of it is finite, so that a model that knows no JSON ends as well.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
PERSON = GrammarSpec("json_schema", json.dumps(SCHEMA))
PROMPT = tuple(range(60, 80))


def _request(seed: int, grammar: GrammarSpec = PERSON) -> GenerationRequest:
    return GenerationRequest(PROMPT, SamplingParams(0.8, seed=seed), 300, grammar=grammar)


def _without_blanks(request: GenerationRequest, loaded: LoadedTarget) -> GenerationRequest:
    """The same with blanks unlikely: this model would write nothing else, as JSON allows."""
    blanks = [token for token, piece in enumerate(loaded.vocabulary.pieces) if piece and not piece.strip()]
    biased = replace(request.sampling, logit_bias=tuple((token, -50.0) for token in blanks))
    return replace(request, sampling=biased)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 200), marks=pytest.mark.nightly)])
async def test_json_always_follows_its_schema_and_equals_the_cloud_alone(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter], seeds: range
) -> None:
    texts = []
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for seed in seeds:
            request = _without_blanks(_request(seed), loaded)
            alone = await edge.write(request)
            drafter = drafters["noisy" if seed % 2 else "useless"]
            policy = GammaPolicy(1 + seed % 8, Mode.LOCKSTEP)
            together = await edge.write(request, drafter, policy)
            assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
            assert together.finish_reason is FinishReason.STOP
            jsonschema.validate(json.loads(together.text), SCHEMA)
            texts.append(together)
    assert len({one.text for one in texts}) > len(seeds) / 2
    # The drafter keeps to the same mask: its guesses are worth sending.
    assert (
        sum(one.timings.num_accepted_tokens for one in texts) > sum(len(one.token_ids) for one in texts) / 4
    )


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_regex_is_matched_whole_in_every_scheme(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter], scheme: Scheme, temperature: float
) -> None:
    pattern = r"(ab|cd){2,5}-[0-9]{3}(\.[x-z]+)?"
    grammar = GrammarSpec("regex", pattern)
    async with serving(loaded) as server, connected(server, loaded) as edge:
        for seed in range(10):
            request = GenerationRequest(
                PROMPT, SamplingParams(temperature, seed=seed), 100, scheme=scheme, grammar=grammar
            )
            for drafter in (drafters["noisy"], NgramDrafter()):
                result = await edge.write(request, drafter, GammaPolicy(3, Mode.LOCKSTEP))
                if result.finish_reason is FinishReason.STOP:
                    assert re.fullmatch(pattern, result.text)
                else:
                    assert re.match(r"(ab|cd){2,5}-[0-9]{3}\.[x-z]+$", result.text)


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        (GrammarSpec("json_schema", '{"type": "nothing"}'), "--json-schema"),
        (GrammarSpec("regex", "("), "--regex"),
    ],
)
async def test_what_cannot_be_followed_is_refused_before_the_first_token(
    loaded: LoadedTarget, spec: GrammarSpec, option: str
) -> None:
    async with serving(loaded) as server, connected(server, loaded) as edge:
        with pytest.raises(DraftwireError, match=option):
            await edge.write(_request(1, spec))
        # Nor does the cloud take it from an edge that does not look.
        assert (await edge.write(replace(_request(1), grammar=None, max_tokens=3))).token_ids
