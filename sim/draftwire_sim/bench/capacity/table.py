"""The table of a capacity benchmark."""

from __future__ import annotations

from typing import Any

from draftwire_sim.bench.capacity.arms import BATCHED

#: Header -> figures that share the cell, and their digits.
_COLUMNS: dict[str, tuple[tuple[str, ...], int]] = {
    "tokens/s": (("tokens_per_s",), 1),
    "steady": (("steady_tokens_per_s",), 1),
    "verdict p50 / p99 / steady p99 ms": (
        ("verdict_p50_ms", "verdict_p99_ms", "steady_verdict_p99_ms"),
        0,
    ),
    "TTFT ms": (("ttft_p50_ms",), 0),
    "passes, steps / token": (("passes_per_token", "steps_per_token"), 3),
    "batch": (("batch_size",), 2),
    "queue / forward / other ms": (("queue_ms", "forward_ms", "other_ms"), 1),
}
_MIB = 1 << 20


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a row for each number of edges and arm."""
    counts = sorted({n for arm in summary["arms"].values() for n in arm["tokens_per_s"]}, key=int)
    rows = [
        _row(summary, arm, clients)
        for clients in counts
        for arm, figures in summary["arms"].items()
        if clients in figures["tokens_per_s"]
    ]
    return ["edges", "arm", *_COLUMNS, "KV MiB", "vs unbatched"], rows


def _row(summary: dict[str, Any], arm: str, clients: str) -> list[str]:
    figures = {name: by_clients.get(clients) for name, by_clients in summary["arms"][arm].items()}
    cells = [_cell([figures.get(name) for name in names], digits) for names, digits in _COLUMNS.values()]
    kv_bytes = figures.get("kv_bytes")
    kv_mib = None if kv_bytes is None else kv_bytes / _MIB
    ratio = summary["batched_vs_unbatched"].get(clients) if arm == BATCHED else None
    return [clients, arm, *cells, _cell([kv_mib], 1), _cell([ratio], 2)]


def _cell(values: list[float | None], digits: int) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values if value is not None)
