"""Real models, loaded once; `make models` puts them in place.

Without them these tests fail with the command that fetches them: a skipped test proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftwire_cloud.convert import ensure_safetensors
from draftwire_cloud.loading import DtypeName, LoadedTarget, TargetConfig, load_target
from draftwire_edge.chat_template import encode_chat
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_models.cache import ModelCache
from draftwire_models.resolve import resolve_draft, resolve_target

PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class RealPair:
    """A loaded target and its drafter."""

    loaded: LoadedTarget
    drafter: LlamaCppDrafter

    def encode(self, text: str) -> tuple[int, ...]:
        """Prompt ids of one user message."""
        messages = [{"role": "user", "content": text}]
        return tuple(encode_chat(self.drafter.tokenizer, self.loaded.card.chat_template, messages))


def load_pair(name: str, stored: str, dtype: DtypeName) -> RealPair:
    """Load both models of a pair from the cache."""
    root = ModelCache.open().root
    folder = ensure_safetensors(resolve_target(name), root, stored)  # type: ignore[arg-type]
    loaded = load_target(TargetConfig(folder, name, dtype), lambda _: None)
    return RealPair(loaded, LlamaCppDrafter(resolve_draft(name), context_length=2048))


@pytest.fixture(scope="session")
def questions() -> list[str]:
    """Prompts of many kinds, from Spec-Bench."""
    return [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]


@pytest.fixture(scope="session")
def coder() -> Iterator[RealPair]:
    """The default pair as it is served by default."""
    pair = load_pair("qwen2.5-coder", "bfloat16", "auto")
    yield pair
    pair.drafter.close()


@pytest.fixture(scope="session")
def smollm() -> Iterator[RealPair]:
    """SmolLM2-135M in float32 with its own 4-bit file as the drafter."""
    pair = load_pair("smollm2-self", "float32", "float32")
    yield pair
    pair.drafter.close()
