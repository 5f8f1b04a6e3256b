"""What each scheme accepts in expectation, all on the same texts: no service, no luck of the draw.

    python benchmarks/overlap.py [--temperature 1.0] [--gamma 4] [--sharpness 1 1.2] [--json FILE]

The target writes each prompt's text alone and the draft model reads along, so p and q of every position are
known. A text x of the target's is kept to place k of a block with probability

    rejection   Π min(1, q(x_i) / p(x_i))              since q(x) min(1, p(x)/q(x)) = p(x) min(1, q(x)/p(x))
    block       min over i <= k of min(1, Π q / p)     likewise, from w of Sun et al. 2025, algorithm 2
    coupled     Π 1 / Σ_j max(p_j, q_j p(x_i)/q(x_i))  Daliri et al. 2024, given the target's token

From these follow α, the chance that one drafted token is accepted, and accepted / drafted over rounds of
gamma tokens that start where the round before ended. q is what the drafter draws from: cut to 64 ids and
rounded where it travels.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

# Spinning OpenMP threads take the core that the next operation needs. Must be set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from draftwire_cloud.convert import ensure_safetensors
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.loading import LoadedTarget, TargetConfig, load_target
from draftwire_edge.chat_template import encode_chat
from draftwire_edge.drafters.guess import draw_token
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_models.cache import ModelCache
from draftwire_models.resolve import resolve_draft, resolve_target
from draftwire_protocol.noise import Float64Array
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.sampling import Float32Array, choose_token

PROMPTS = Path(__file__).parent / "prompts.jsonl"
SCHEMES = ("coupled", "rejection", "block")


def target_text(
    loaded: LoadedTarget, prompt: list[int], params: SamplingParams, length: int
) -> Iterator[Any]:
    """The target's own text: each token with the row it came from."""
    target, ids, fed = loaded.target, list(prompt), 0
    slot = target.slots.open(len(prompt) + length)
    try:
        while len(ids) < len(prompt) + length and ids[-1] not in loaded.vocabulary.eos_ids:
            row = target.forward([Span(slot, ids[fed:], 1)])[0][0, : loaded.vocabulary.n_tokens].numpy()
            fed = len(ids)
            ids.append(choose_token(row, params, fed))
            yield row, ids[-1]
    finally:
        target.slots.release(slot)


class DraftReader:
    """The draft model's rows along a text that it did not write."""

    def __init__(self, pair: str, length: int) -> None:
        self._drafter = LlamaCppDrafter(resolve_draft(pair), context_length=length)
        self.tokenizer = self._drafter.tokenizer
        self._row: Float32Array = np.empty(0, np.float32)

    def row(self, context: list[int]) -> Float32Array:
        """float32 ``[n_tokens]`` after this context."""
        self._drafter.draft(context, self, 1, lambda _: False)
        return self._row

    def begin(self, context: Sequence[int]) -> None:
        """As ``Proposer``."""

    def guess(self, logits: Float32Array) -> Any:
        """Keep the row instead of guessing from it."""
        self._row = logits.copy()


def softmax(logits: Float32Array, temperature: float, sharpness: float = 1.0) -> Float64Array:
    """Probabilities, float64 ``[n_tokens]``."""
    scores = logits.astype(np.float64) * (sharpness / temperature)
    chances = np.exp(scores - scores.max())
    return np.asarray(chances / chances.sum())


def agreement(p: Float64Array, q: Float64Array, token: int) -> float:
    """Chance that the coupled draft is ``token``, given that the target's choice is."""
    if q[token] == 0.0:
        return 0.0
    return float(1.0 / np.maximum(p, q * (p[token] / q[token])).sum())


def keeps(scheme: str, chances: Float64Array) -> Float64Array:
    """Chance that a block is kept to each of its places.

    Args:
        scheme: one of ``SCHEMES``.
        chances: of each place, agreement for coupled and q/p otherwise, ``[gamma]``.
    """
    if scheme != "block":
        return np.cumprod(np.minimum(1.0, chances), dtype=np.float64)
    return np.array([*accumulate(np.cumprod(chances).tolist(), min, initial=1.0)][1:])


def rounds(scheme: str, chances: Float64Array, gamma: int) -> tuple[float, float]:
    """Expected tokens accepted and drafted in whole rounds over one text; its first token is the target's."""
    starts = np.zeros(len(chances) + gamma + 2)
    starts[1] = 1.0
    accepted = drafted = 0.0
    for start in range(1, len(chances) - gamma + 1):
        kept = keeps(scheme, chances[start : start + gamma])
        accepted += starts[start] * kept.sum()
        drafted += starts[start] * gamma
        ends = -np.diff(np.concatenate([[1.0], kept, [0.0]]))
        starts[start + 1 : start + gamma + 2] += starts[start] * ends
    return accepted, drafted


def read_text(
    loaded: LoadedTarget, reader: DraftReader, prompt: list[int], params: SamplingParams, options: Any
) -> dict[tuple[str, float], Float64Array]:
    """Chances of every place of one text, by scheme and sharpness."""
    ids = list(prompt)
    found: dict[tuple[str, float], list[float]] = {}
    for row, token in target_text(loaded, prompt, params, options.tokens):
        p, drafted = softmax(row, params.temperature), reader.row(ids)
        for sharpness in options.sharpness:
            q = softmax(drafted, params.temperature, sharpness)
            found.setdefault(("coupled", sharpness), []).append(agreement(p, q, token))
            proposal = draw_token(drafted, params, 0.5, sharpness).proposal
            ratio = proposal.probability(token) / p[token] if proposal else 0.0
            for scheme in SCHEMES[1:]:
                found.setdefault((scheme, sharpness), []).append(ratio)
        ids.append(token)
    return {key: np.array(values) for key, values in found.items()}


def main() -> None:
    """Measure and print one line a scheme and sharpness."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", default="qwen2.5-coder")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens a text")
    parser.add_argument("--prompts", type=int, default=20, help="how many of the prompts")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; each has the next one")
    parser.add_argument("--gamma", type=int, default=4, help="tokens a block")
    parser.add_argument("--sharpness", type=float, nargs="+", default=[1.0, 1.2])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to this file")
    options = parser.parse_args()
    folder = ensure_safetensors(resolve_target(options.pair), ModelCache.open().root, "bfloat16")
    loaded = load_target(TargetConfig(folder, options.pair), print)
    reader = DraftReader(options.pair, 4096)
    texts = []
    for seed, line in enumerate(PROMPTS.read_text(encoding="utf-8").splitlines()[: options.prompts]):
        messages = [{"role": "user", "content": json.loads(line)["prompt"]}]
        prompt = encode_chat(reader.tokenizer, loaded.card.chat_template, messages)
        params = SamplingParams(options.temperature, seed=options.seed + seed)
        texts.append(read_text(loaded, reader, prompt, params, options))
        print(f"text {seed + 1}: {len(next(iter(texts[-1].values())))} tokens", flush=True)
    summary = []
    for scheme, sharpness in texts[0]:
        own = [text[scheme, sharpness] for text in texts]
        alpha = float(np.minimum(1.0, np.concatenate(own)).mean())
        accepted, drafted = np.sum([rounds(scheme, one, options.gamma) for one in own], axis=0)
        rate = float(accepted / drafted)
        summary.append({"scheme": scheme, "sharpness": sharpness, "alpha": alpha, "acceptance": rate})
        print(f"{scheme:10s} sharpness {sharpness}  alpha {alpha:.3f}  accepted / drafted {rate:.3f}")
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
