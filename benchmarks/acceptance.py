"""How much of a draft each scheme accepts, on the same prompts, in one interleaved run.

    draftwire-cloud serve &
    python benchmarks/acceptance.py [--temperature 1.0] [--gamma 4] [--draft-sharpness 1.2] [--json FILE]

Blocks have a fixed length, so that the schemes are asked about the same number of tokens. Acceptance is
accepted / drafted over all prompts; first is that of a block's first token alone, which no earlier
rejection can spoil; the mean acceptance length counts the target's own token as well.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

# Spinning OpenMP threads take the core that the next operation needs. Must be set before llama.cpp loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from dataclasses import replace

from draftwire_edge.client import EdgeClient
from draftwire_edge.config import load_settings
from draftwire_edge.generation import DoneEvent, GenerationRequest, GenerationResult
from draftwire_protocol.messages import Scheme

PROMPTS = Path(__file__).parent / "prompts.jsonl"


async def write(client: EdgeClient, request: GenerationRequest) -> GenerationResult:
    """One text."""
    async for event in client.generate_from(request):
        if isinstance(event, DoneEvent):
            return event.result
    raise RuntimeError("the text has no end")


async def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Counts of every scheme and prompt."""
    settings = load_settings(
        cloud=arguments.cloud, gamma=str(arguments.gamma), mode="lockstep", wait_s=60.0,
        temperature=arguments.temperature, top_p=arguments.top_p, max_tokens=arguments.tokens,
        draft_sharpness=arguments.draft_sharpness,
    )  # fmt: skip
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = []
    async with EdgeClient(settings) as client:
        for seed, prompt in enumerate(prompts[: arguments.prompts], start=arguments.seed):
            request = client.request(prompt["prompt"], seed=seed)
            for scheme in Scheme:
                result = await write(client, replace(request, scheme=scheme))
                timings = result.timings
                rows.append(
                    {
                        "category": prompt["category"],
                        "scheme": scheme.value,
                        "tokens": len(result.token_ids),
                        "drafts": timings.num_drafts,
                        "drafted": timings.num_draft_tokens,
                        "accepted": timings.num_accepted_tokens,
                        "first": sum(timings.num_accepted_tokens_per_pos[:1]),
                        "draft_bytes_per_token": timings.draft_bytes_per_token,
                    }
                )
                print(*rows[-1].values(), flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Ratios of sums, by scheme."""
    found = {}
    for scheme in Scheme:
        own = [row for row in rows if row["scheme"] == scheme.value]
        drafts, drafted, accepted = (
            sum(row[key] for row in own) for key in ("drafts", "drafted", "accepted")
        )
        sent = sum(row["draft_bytes_per_token"] * row["drafted"] for row in own)
        found[scheme.value] = {
            "acceptance": accepted / drafted,
            "first": sum(row["first"] for row in own) / drafts,
            "mean_acceptance_length": 1.0 + accepted / drafts,
            "bytes_per_drafted_token": sent / drafted,
        }
    return found


def main() -> None:
    """Measure and print one line a scheme."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cloud", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens a text")
    parser.add_argument("--prompts", type=int, default=20, help="how many of the prompts")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--draft-sharpness", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; each has the next one")
    parser.add_argument("--gamma", type=int, default=4, help="tokens a block")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to this file")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments))
    found = summary(rows)
    for scheme, figures in found.items():
        print(f"{scheme:10s}", *(f"{name} {value:.3f}" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": found, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
