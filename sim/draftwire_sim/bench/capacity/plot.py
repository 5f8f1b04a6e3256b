"""The curves of a capacity benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.backend_bases import FigureCanvasBase

from draftwire_protocol.errors import UserInputError

_PANELS = (("tokens_per_s", "output tokens a second"), ("verdict_p99_ms", "verdict latency p99, ms"))


def check_format(path: Path) -> None:
    """See whether a file of this name can be drawn.

    Raises:
        UserInputError: its ending is none that stands for a picture.
    """
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UserInputError("--plot", f"{path.name} is no picture by its ending", "End it in .png or .svg")


def draw(summary: dict[str, Any], path: Path) -> None:
    """Throughput and latency against the number of edges; the file's ending says which format."""
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(9, 4), constrained_layout=True)
    for axes, (name, label) in zip(panels, _PANELS, strict=True):
        for arm, figures in summary["arms"].items():
            points = sorted((int(clients), value) for clients, value in figures.get(name, {}).items())
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=arm)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("edges at once")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
