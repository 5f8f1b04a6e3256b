"""The curves of a latency benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from draftwire_sim.bench.summary import ROWS

_BEST = "best fixed γ"


def draw(report: dict[str, Any], path: Path) -> None:
    """Time per token against R, one line a way to write; the file's ending says which format."""
    summary = report["summary"]
    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    for name in ROWS:
        points = _points(summary, name)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    axes.set_xlabel("round-trip time R, ms")
    axes.set_ylabel("time per output token, ms")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _points(summary: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """(R, TPOT) of one line, rising."""
    tpot, best = summary["tpot_ms"], summary["best_fixed_gamma"]
    if name == _BEST:
        return sorted((float(rtt), tpot[arm][rtt]) for rtt, arm in best.items())
    return sorted((float(rtt), ms) for rtt, ms in tpot.get(name, {}).items())
