"""From texts to the published figures: medians of ratios within one text of one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from draftwire_sim.bench.arms import CLOUD_ALONE, COLOCATED, DRAFT_ALONE, LOCKSTEP_AUTO, WINDOW
from draftwire_sim.bench.texts import Text

#: mode -> link, by its R in ms or its profile's name -> figure.
Figures = dict[str, dict[str, float]]


def is_fixed(arm: str) -> bool:
    """Whether an arm is lockstep with a γ that nothing changes."""
    return arm.startswith("lockstep-") and arm != LOCKSTEP_AUTO


def summarise(texts: Sequence[Text]) -> dict[str, Any]:
    """The ``summary`` object of the benchmark's JSON."""
    tpot = by_arm(texts, lambda group: median(text.tpot_ms for text in group))
    best = best_fixed(tpot)
    return {
        "speedup_vs_cloud": speedups(texts, dict.fromkeys(links(texts), CLOUD_ALONE)),
        "speedup_vs_best_fixed_gamma": speedups(texts, best),
        "best_fixed_gamma": best,
        "tpot_ms": tpot,
        "target_passes_per_token": by_arm(texts, lambda group: _ratio(group, "target_passes")),
        "guessed_per_token": by_arm(texts, lambda group: _ratio(group, "num_guessed")),
        "bytes_per_token": by_arm(
            texts, lambda group: _ratio(group, "bytes_up") + _ratio(group, "bytes_down")
        ),
        "acceptance_rate": by_arm(texts, _acceptance),
        "identical": all(text.identical is not False for text in texts),
    }


def links(texts: Iterable[Text]) -> list[str]:
    """The links of a run, in its order."""
    return list(dict.fromkeys(text.link for text in texts))


def by_arm(texts: Sequence[Text], figure: Any) -> Figures:
    """A figure of the texts of each arm and link."""
    groups: dict[tuple[str, str], list[Text]] = defaultdict(list)
    for text in texts:
        groups[text.arm, text.link].append(text)
    result: Figures = defaultdict(dict)
    for (arm, link), group in groups.items():
        result[arm][link] = round(figure(group), 4)
    return dict(result)


def best_fixed(tpot_ms: Figures) -> dict[str, str]:
    """Of each link, the fixed γ that was best in hindsight."""
    arms = {arm: row for arm, row in tpot_ms.items() if is_fixed(arm)}
    found = {link for row in arms.values() for link in row}
    return {link: min(arms, key=lambda arm: arms[arm].get(link, float("inf"))) for link in found}


def speedups(texts: Sequence[Text], base: dict[str, str]) -> Figures:
    """Median over texts of TPOT of the base arm / TPOT, both of the same text and link.

    Args:
        texts: all of them.
        base: of each link, the arm to compare with.
    """
    tpot = {(text.arm, text.link, text.prompt): text.tpot_ms for text in texts}
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (arm, link, prompt), ms in tpot.items():
        if ms and link in base and (base_ms := tpot.get((base[link], link, prompt))):
            ratios[arm][link].append(base_ms / ms)
    return {arm: {link: round(median(all_), 4) for link, all_ in row.items()} for arm, row in ratios.items()}


def against_model(texts: Sequence[Text], modelled_ms: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each link, the median over texts of measured / modelled time per token of ``WINDOW``.

    Args:
        texts: all of them.
        modelled_ms: link -> of each text, what the event model says.
    """
    ratios = {
        link: [text.tpot_ms / model[text.prompt] for text in texts if (text.arm, text.link) == (WINDOW, link)]
        for link, model in modelled_ms.items()
    }
    return {link: round(median(row), 4) for link, row in ratios.items() if row}


def _ratio(texts: Sequence[Text], name: str) -> float:
    """Sum of a count / tokens."""
    tokens = sum(len(text.tokens) for text in texts)
    return float(sum(getattr(text, name) for text in texts) / max(1, tokens))


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
    DRAFT_ALONE,
)
#: Names of rows that say more than the arm's.
LABELS = {DRAFT_ALONE: "draft alone (another text)"}


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: TPOT in ms, and the speed-up over the cloud alone in brackets."""
    columns = links_in_order(summary)
    rows = []
    for name in ROWS:
        cells = [_cell(summary, name, link) for link in columns]
        if any(cells):
            rows.append([LABELS.get(name, name), *cells])
    return ["ms/token (vs cloud)", *map(link_title, columns)], rows


def links_in_order(summary: dict[str, Any]) -> list[str]:
    """Every link of a summary: by rising R, then the profiles as they came."""
    found = dict.fromkeys(link for row in summary["tpot_ms"].values() for link in row)
    return sorted(found, key=lambda link: float(link) if is_rtt(link) else float("inf"))


def is_rtt(link: str) -> bool:
    """Whether a link is named by its R; profiles have names."""
    try:
        float(link)
    except ValueError:
        return False
    return True


def link_title(link: str) -> str:
    """As the head of a column."""
    return f"R {link}" if is_rtt(link) else link


def _cell(summary: dict[str, Any], name: str, link: str) -> str:
    is_best = name == "best fixed γ"
    arm = summary["best_fixed_gamma"].get(link) if is_best else name
    ms = summary["tpot_ms"].get(arm, {}).get(link)
    if ms is None:
        return ""
    factor = summary["speedup_vs_cloud"].get(arm, {}).get(link, 0.0)
    gamma = f" γ{arm.rsplit('-', 1)[1]}" if is_best else ""
    return f"{ms:.1f} ({factor:.2f}){gamma}"
