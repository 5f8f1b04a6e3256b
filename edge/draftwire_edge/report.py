"""A finished generation as JSON and as a line for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from draftwire_edge.generation import GenerationResult
from draftwire_protocol.messages import TokenLogprobs


def as_json(result: GenerationResult, *, model: str, seed: int) -> dict[str, Any]:
    """One JSON object: text, ids, sources, usage, timings."""
    timings = asdict(result.timings)
    timings["acceptance_rate"] = result.timings.acceptance_rate
    timings["mean_acceptance_length"] = result.timings.mean_acceptance_length
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "sources": list(result.sources),
        **({"logprobs": [_logprobs(one) for one in result.logprobs]} if result.logprobs else {}),
        "finish_reason": result.finish_reason.value,
        "model": model,
        "seed": seed,
        "usage": asdict(result.usage),
        "timings": timings,
    }


def _logprobs(one: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": value} for token, value in one.top]
    return {"logprob": one.logprob, "top": top}


def one_line(result: GenerationResult) -> str:
    """What a person wants to know at a glance."""
    timings = result.timings
    parts = [f"{len(result.token_ids)} tokens", f"first after {timings.ttft_ms:.0f} ms"]
    if timings.tpot_ms is not None:
        parts.append(f"{timings.tpot_ms:.0f} ms/token")
    if timings.acceptance_rate is not None:
        parts.append(f"{timings.acceptance_rate:.0%} of {timings.num_draft_tokens} drafted tokens accepted")
    parts.append(f"{timings.target_passes} target passes")
    parts.append(f"ended by {result.finish_reason.value}")
    return " · ".join(parts)
