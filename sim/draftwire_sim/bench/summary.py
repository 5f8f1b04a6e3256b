"""From texts to the published figures: medians of ratios within one text of one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from draftwire_sim.bench.arms import CLOUD_ALONE, COLOCATED, LOCKSTEP_AUTO, WINDOW
from draftwire_sim.bench.texts import Text

#: mode -> round-trip time in ms, as JSON writes it -> figure.
Figures = dict[str, dict[str, float]]


def is_fixed(arm: str) -> bool:
    """Whether an arm is lockstep with a γ that nothing changes."""
    return arm.startswith("lockstep-") and arm != LOCKSTEP_AUTO


def summarise(texts: Sequence[Text]) -> dict[str, Any]:
    """The ``summary`` object of the benchmark's JSON."""
    tpot = by_arm(texts, lambda group: median(text.tpot_ms for text in group))
    best = best_fixed(tpot)
    return {
        "speedup_vs_cloud": speedups(texts, dict.fromkeys(rtts(texts), CLOUD_ALONE)),
        "speedup_vs_best_fixed_gamma": speedups(texts, best),
        "best_fixed_gamma": best,
        "tpot_ms": tpot,
        "target_passes_per_token": by_arm(texts, lambda group: _ratio(group, "target_passes")),
        "guessed_per_token": by_arm(texts, lambda group: _ratio(group, "num_guessed")),
        "bytes_per_token": by_arm(
            texts, lambda group: _ratio(group, "bytes_up") + _ratio(group, "bytes_down")
        ),
        "acceptance_rate": by_arm(texts, _acceptance),
        "identical": all(text.identical for text in texts),
    }


def rtts(texts: Iterable[Text]) -> list[str]:
    """The round-trip times of a run, rising, as keys."""
    return [f"{rtt:g}" for rtt in sorted({text.rtt_ms for text in texts})]


def by_arm(texts: Sequence[Text], figure: Any) -> Figures:
    """A figure of the texts of each arm and link."""
    groups: dict[tuple[str, float], list[Text]] = defaultdict(list)
    for text in texts:
        groups[text.arm, text.rtt_ms].append(text)
    result: Figures = defaultdict(dict)
    for (arm, rtt), group in groups.items():
        result[arm][f"{rtt:g}"] = round(figure(group), 4)
    return dict(result)


def best_fixed(tpot_ms: Figures) -> dict[str, str]:
    """Of each link, the fixed γ that was best in hindsight."""
    arms = {arm: row for arm, row in tpot_ms.items() if is_fixed(arm)}
    links = {rtt for row in arms.values() for rtt in row}
    return {rtt: min(arms, key=lambda arm: arms[arm].get(rtt, float("inf"))) for rtt in links}


def speedups(texts: Sequence[Text], base: dict[str, str]) -> Figures:
    """Median over texts of TPOT of the base arm / TPOT, both of the same text and link.

    Args:
        texts: all of them.
        base: of each link, the arm to compare with.
    """
    tpot = {(text.arm, f"{text.rtt_ms:g}", text.prompt): text.tpot_ms for text in texts}
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (arm, rtt, prompt), ms in tpot.items():
        if rtt in base and (base_ms := tpot.get((base[rtt], rtt, prompt))):
            ratios[arm][rtt].append(base_ms / ms)
    return {arm: {rtt: round(median(all_), 4) for rtt, all_ in row.items()} for arm, row in ratios.items()}


def against_model(texts: Sequence[Text], modelled_ms: Mapping[float, Sequence[float]]) -> dict[str, float]:
    """Of each link, the median over texts of measured / modelled time per token of ``WINDOW``.

    Args:
        texts: all of them.
        modelled_ms: R -> of each text, what the event model says.
    """
    ratios = {
        rtt: [text.tpot_ms / model[text.prompt] for text in texts if (text.arm, text.rtt_ms) == (WINDOW, rtt)]
        for rtt, model in modelled_ms.items()
    }
    return {f"{rtt:g}": round(median(row), 4) for rtt, row in ratios.items() if row}


def _ratio(texts: Sequence[Text], name: str) -> float:
    """Sum of a count / tokens."""
    return float(sum(getattr(text, name) for text in texts) / sum(len(text.tokens) for text in texts))


def _acceptance(texts: Sequence[Text]) -> float:
    drafted = sum(text.num_drafted for text in texts)
    return sum(text.num_accepted for text in texts) / drafted if drafted else 0.0


#: Rows of the table, in order; the fixed γ come as one row.
ROWS = (
    CLOUD_ALONE,
    COLOCATED,
    "best fixed γ",
    LOCKSTEP_AUTO,
    "pipelined",
    "duplex",
    WINDOW,
    "auto",
    "auto-balanced",
    "auto-cost",
)


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: TPOT in ms, and the speed-up over the cloud alone in brackets."""
    links = sorted(summary["best_fixed_gamma"] or summary["tpot_ms"][CLOUD_ALONE], key=float)
    rows = []
    for name in ROWS:
        cells = [_cell(summary, name, rtt) for rtt in links]
        if any(cells):
            rows.append([name, *cells])
    return ["ms/token (vs cloud)", *(f"R {rtt}" for rtt in links)], rows


def _cell(summary: dict[str, Any], name: str, rtt: str) -> str:
    is_best = name == "best fixed γ"
    arm = summary["best_fixed_gamma"].get(rtt) if is_best else name
    ms = summary["tpot_ms"].get(arm, {}).get(rtt)
    if ms is None:
        return ""
    factor = summary["speedup_vs_cloud"].get(arm, {}).get(rtt, 0.0)
    gamma = f" γ{arm.rsplit('-', 1)[1]}" if is_best else ""
    return f"{ms:.1f} ({factor:.2f}){gamma}"
