"""From what edges saw to figures: pure, no clock, no service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from draftwire_sim.bench.capacity.arms import BATCHED, UNBATCHED, VLLM
from draftwire_sim.bench.capacity.records import Seen, Turn, Written

#: Name -> N, as JSON writes it -> figure.
Figures = dict[str, dict[str, float]]
#: Those of the batched arm that stand at the top of the summary.
_TOP = (
    "tokens_per_s", "verdict_p50_ms", "verdict_p99_ms", "passes_per_token", "steps_per_token", "batch_size",
)  # fmt: skip


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` % of the values do not exceed: the smallest such one, no mean of two.

    Args:
        values: in any order.
        percent: in (0, 100].

    Raises:
        ValueError: there are none, or no such percentage.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    return float(np.percentile(np.asarray(values, np.float64), percent, method="inverted_cdf"))


def steps(seen: Sequence[Seen]) -> float:
    """Forward passes that gave these verdicts: each counts as its part of a batch.

    A pass in which only prompts were read gave none, and sessions in the middle of a prompt count as a
    part of the batch, so that the figure is a little low while prompts are read.
    """
    return sum(1 / one.timing.batch_size for one in seen)


def steady(turn: Turn) -> tuple[float, float] | None:
    """From when all are past their first prompts until one has ended its last text; None for no such time."""
    if not turn.texts:
        return None
    begin = max(edge[0].first_at_s for edge in turn.edges)
    end = min(edge[-1].ended_at_s for edge in turn.edges)
    return (begin, end) if end > begin else None


def steady_rate(turn: Turn) -> float | None:
    """Tokens a second while all write; None where they never did."""
    if (time := steady(turn)) is None:
        return None
    begin, end = time
    tokens = sum(one.tokens for text in turn.texts for one in text.seen if begin < one.at_s <= end)
    return tokens / (end - begin)


def steady_verdicts(turn: Turn) -> list[Seen]:
    """The verdicts that came while all wrote; first ones, for which a prompt was read, are left out."""
    if (time := steady(turn)) is None:
        return []
    return [one for text in turn.texts for one in text.verdicts if time[0] < one.at_s <= time[1]]


def peak_tokens(texts: Sequence[Written]) -> int:
    """Most tokens that sessions held keys and values of at once: prompts and committed text.

    Args:
        texts: written at once.
    """
    changes = [(text.asked_at_s, text.prompt_tokens) for text in texts]
    changes += [(one.at_s, one.tokens) for text in texts for one in text.seen]
    changes += [(text.ended_at_s, -text.prompt_tokens - len(text.tokens)) for text in texts]
    held, most = 0, 0
    # What comes at the same moment as an end was still held beside it.
    for _, change in sorted(changes, key=lambda one: (one[0], one[1] < 0)):
        held += change
        most = max(most, held)
    return most


def arm_figures(turns: Sequence[Turn], kv_bytes_per_token: int | None) -> dict[str, float]:
    """The figures of one arm at one number of edges.

    Args:
        turns: all of them.
        kv_bytes_per_token: None where it is not known.
    """
    tokens = sum(turn.tokens for turn in turns)
    found = {"tokens_per_s": tokens / sum(turn.seconds for turn in turns)}
    texts = [text for turn in turns for text in turn.texts]
    if not texts:
        return _rounded(found)
    rates = [rate for turn in turns if (rate := steady_rate(turn)) is not None]
    lasting = [1e3 * one.latency_s for turn in turns for one in steady_verdicts(turn)]
    verdicts = [one for text in texts for one in text.verdicts]
    seen = [one for text in texts for one in text.seen]
    found |= {
        **({"steady_tokens_per_s": median(rates)} if rates else {}),
        **({"steady_verdict_p99_ms": percentile(lasting, 99)} if lasting else {}),
        **_latencies(verdicts),
        "ttft_p50_ms": 1e3 * median(text.ttft_s for text in texts),
        "passes_per_token": fmean(text.usage.target_passes / len(text.tokens) for text in texts),
        "steps_per_token": steps(seen) / tokens,
        "batch_size": len(seen) / steps(seen),
        "acceptance": _acceptance(texts),
    }
    if kv_bytes_per_token is not None:
        found["kv_bytes"] = float(kv_bytes_per_token * max(peak_tokens(turn.texts) for turn in turns))
    return _rounded(found)


def _latencies(verdicts: Sequence[Seen]) -> dict[str, float]:
    """Of every verdict but the first ones; the server's parts are those that it reports."""
    if not verdicts:
        return {}
    latency_ms = [1e3 * one.latency_s for one in verdicts]
    parts: dict[str, Callable[[Seen], int]] = {
        "queue_ms": lambda one: one.timing.queue_us,
        "forward_ms": lambda one: one.timing.forward_us,
        "other_ms": lambda one: one.timing.other_us,
    }
    return {
        "verdict_p50_ms": percentile(latency_ms, 50),
        "verdict_p99_ms": percentile(latency_ms, 99),
        **{name: median(part(one) for one in verdicts) / 1e3 for name, part in parts.items()},
    }


def _acceptance(texts: Sequence[Written]) -> float:
    drafted = sum(text.usage.num_draft_tokens for text in texts)
    return sum(text.usage.num_accepted_tokens for text in texts) / drafted if drafted else 0.0


def summarise(turns: Sequence[Turn], kv_bytes_per_token: int | None) -> dict[str, Any]:
    """The ``summary`` object of the report."""
    arms: dict[str, Figures] = {}
    for arm, clients in dict.fromkeys((turn.arm, turn.clients) for turn in turns):
        group = [turn for turn in turns if (turn.arm, turn.clients) == (arm, clients)]
        for name, value in arm_figures(group, kv_bytes_per_token).items():
            arms.setdefault(arm, {}).setdefault(name, {})[str(clients)] = value
    batched = arms.get(BATCHED, {})
    others = [turn for turn in turns if turn.arm == VLLM]
    return {
        "batched_vs_unbatched": ratios(turns, BATCHED, UNBATCHED),
        **{name: batched.get(name, {}) for name in _TOP},
        "arms": arms,
        "identical": all(turn.identical for turn in turns if turn.arm != VLLM),
        **({"vllm_identical": all(turn.identical for turn in others)} if others else {}),
    }


def ratios(turns: Sequence[Turn], arm: str, base: str) -> dict[str, float]:
    """N -> median over turns of tokens a second of two arms, both of the same turn."""
    rates = {(turn.arm, turn.clients, turn.turn): turn.tokens / turn.seconds for turn in turns}
    found: dict[str, list[float]] = {}
    for (name, clients, turn), rate in rates.items():
        if name == arm and (base, clients, turn) in rates:
            found.setdefault(str(clients), []).append(rate / rates[base, clients, turn])
    return {clients: round(median(row), 4) for clients, row in found.items()}


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}
