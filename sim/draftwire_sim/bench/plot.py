"""The curves of a latency benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from draftwire_sim.bench.summary import LABELS, ROWS, is_rtt, links_in_order

_BEST = "best fixed γ"


def draw(report: dict[str, Any], path: Path) -> None:
    """Time per token against R, or of each profile, one line a way to write.

    The file's ending says which format.
    """
    summary = report["summary"]
    links = links_in_order(summary)
    along_rtt = all(map(is_rtt, links))
    places = {link: float(link) if along_rtt else float(index) for index, link in enumerate(links)}
    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    for name in ROWS:
        points = _points(summary, name, places)
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=LABELS.get(name, name))
    if along_rtt:
        axes.set_xlabel("round-trip time R, ms")
    else:
        axes.set_xticks(list(places.values()), links)
    axes.set_ylabel("time per output token, ms")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _points(summary: dict[str, Any], name: str, places: Mapping[str, float]) -> list[tuple[float, float]]:
    """(place of the link, TPOT) of one line, rising."""
    tpot, best = summary["tpot_ms"], summary["best_fixed_gamma"]
    if name == _BEST:
        return sorted((places[link], tpot[arm][link]) for link, arm in best.items())
    return sorted((places[link], ms) for link, ms in tpot.get(name, {}).items())
