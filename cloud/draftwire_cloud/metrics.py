"""What Prometheus is shown: names, meanings, and where each figure comes from.

Only this module knows Prometheus. The engine keeps plain counters; they are read when somebody asks, on
the thread that asks: whole numbers and copies of lists, which the GIL keeps whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from draftwire_cloud.counts import Histogram
from draftwire_cloud.engine_loop import EngineLoop
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.rpc_counts import RpcCounts


class Observed(NamedTuple):
    """What is looked at: one server."""

    engine: EngineLoop
    rpcs: RpcCounts
    loaded: LoadedTarget


#: A number; one for each value of the label; or a distribution.
Figure = float | Mapping[str, float] | Histogram


@dataclass(frozen=True, slots=True)
class Shown:
    """One metric. Of a counter, ``_total`` belongs to the name."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    meaning: str
    read: Callable[[Observed], Figure]
    #: Name of the label, whose values are few and known beforehand.
    label: str = ""


_SERVICE = (
    Shown(
        "gauge", "draftwire_open_streams", "Decode streams under way, those not let in yet included.",
        lambda of: of.rpcs.open_streams,
    ),
    Shown(
        "gauge", "draftwire_open_sessions", "Sessions let in that have a stream.",
        # Read in this order it is never negative.
        lambda of: -of.engine.counts.closed + of.engine.counts.opened,
    ),
    Shown(
        "gauge", "draftwire_parked_sessions", "Leases: sessions without a stream that keep their memory.",
        lambda of: of.engine.num_parked,
    ),
    Shown(
        "counter", "draftwire_sessions_opened_total", "Sessions let in, those that were resumed included.",
        lambda of: of.engine.counts.opened,
    ),
    Shown(
        "counter", "draftwire_admissions_refused_total",
        "Sessions not let in: as many as allowed were open, prompts waited too long, or no memory was left.",
        lambda of: {str(reason): n for reason, n in of.engine.counts.refused.items()}, "reason",
    ),
    Shown("counter", "draftwire_rpcs_total", "RPCs begun.", lambda of: dict(of.rpcs.begun), "method"),
    Shown(
        "counter", "draftwire_rpc_errors_total", "RPCs that ended with another status than OK.",
        lambda of: dict(of.rpcs.errors), "code",
    ),
    Shown(
        "counter", "draftwire_received_bytes_total", "Bytes of the edges' messages, without framing.",
        lambda of: dict(of.rpcs.received_bytes), "method",
    ),
    Shown(
        "counter", "draftwire_sent_bytes_total", "Bytes of the service's messages, without framing.",
        lambda of: dict(of.rpcs.sent_bytes), "method",
    ),
)  # fmt: skip

_SPECULATION = (
    Shown(
        "counter", "draftwire_num_drafts_total", "Blocks of drafted tokens that got their verdict.",
        lambda of: of.engine.counts.speculation.num_drafts,
    ),
    Shown(
        "counter", "draftwire_num_draft_tokens_total", "Drafted tokens judged, counted after truncation.",
        lambda of: of.engine.counts.speculation.num_draft_tokens,
    ),
    Shown(
        "counter", "draftwire_num_accepted_tokens_total", "Drafted tokens kept, bonus tokens excluded.",
        lambda of: of.engine.counts.speculation.num_accepted_tokens,
    ),
    Shown(
        "counter", "draftwire_num_accepted_tokens_per_pos_total",
        "Drafted tokens kept, by their place in the block, from 0.",
        lambda of: _numbered(of.engine.counts.speculation.num_accepted_tokens_per_pos), "position",
    ),
    Shown(
        "counter", "draftwire_output_tokens_total", "Tokens committed and sent.",
        lambda of: of.engine.counts.speculation.output_tokens,
    ),
    Shown(
        "counter", "draftwire_target_passes_total",
        "Verdicts, each one session's part of a forward pass; those without a draft included.",
        lambda of: of.engine.counts.speculation.target_passes,
    ),
    Shown(
        "counter", "draftwire_fill_tokens_total", "Tokens the cloud wrote because it held no usable draft.",
        lambda of: {mode.value: n for mode, n in of.engine.counts.fill_tokens.items()}, "mode",
    ),
    Shown(
        "counter", "draftwire_fills_refused_total",
        "Verdicts before which a fill was put off because others waited.",
        lambda of: of.engine.counts.fills_refused,
    ),
)  # fmt: skip

_PASSES = (
    Shown("counter", "draftwire_passes_total", "Forward passes made.", lambda of: of.engine.counts.passes),
    Shown(
        "counter", "draftwire_failed_passes_total",
        "Forward passes that gave nothing: no room for keys and values (tried again), or a fault.",
        lambda of: of.engine.counts.failed_passes,
    ),
    Shown(
        "histogram", "draftwire_pass_seconds", "Time of a forward pass.", lambda of: of.engine.counts.pass_s
    ),
    Shown(
        "histogram", "draftwire_batch_size_sessions", "Sessions in a forward pass.",
        lambda of: of.engine.counts.batch_size,
    ),
    Shown(
        "histogram", "draftwire_pass_rows", "New tokens in a forward pass, padding excluded.",
        lambda of: of.engine.counts.pass_rows,
    ),
    Shown(
        "histogram", "draftwire_queue_seconds",
        "Time from when a session's work was known to the pass with it; verdicts after a stream's first.",
        lambda of: of.engine.counts.queue_s,
    ),
    Shown(
        "histogram", "draftwire_verdict_seconds",
        "Time from when a session's work was known to its verdict, the server time that the edge is told; "
        "verdicts after a stream's first.",
        lambda of: of.engine.counts.verdict_s,
    ),
    Shown(
        "histogram", "draftwire_first_verdict_seconds",
        "Time from Open to a stream's first verdict, the prompt's reading included.",
        lambda of: of.engine.counts.first_verdict_s,
    ),
    Shown(
        "counter", "draftwire_prompt_tokens_read_total",
        "Tokens of prompts (and of texts resumed) fed to the target.",
        lambda of: of.engine.counts.prompt_tokens,
    ),
)  # fmt: skip

_MEMORY = (
    Shown(
        "gauge", "draftwire_kv_used_bytes", "Memory that sessions' keys and values count for.",
        lambda of: of.engine.slots.used_bytes,
    ),
    Shown(
        "gauge", "draftwire_kv_budget_bytes", "Memory for keys and values, at most; with --tp on each rank.",
        lambda of: of.engine.slots.budget_bytes,
    ),
    Shown(
        "gauge", "draftwire_kv_used_blocks", "Blocks that sessions count for.",
        lambda of: of.engine.slots.n_taken_blocks,
    ),
    Shown("gauge", "draftwire_kv_free_blocks", "Free blocks.", lambda of: of.engine.slots.n_free_blocks),
    Shown(
        "gauge", "draftwire_kv_peak_blocks", "Most blocks used at once since the start.",
        lambda of: of.engine.slots.counts.peak_blocks,
    ),
    Shown(
        "counter", "draftwire_kv_moves_total", "Sessions moved because their neighbour block was taken.",
        lambda of: of.engine.slots.counts.moves,
    ),
    Shown(
        "counter", "draftwire_kv_compactions_total", "Times all sessions were pushed together.",
        lambda of: of.engine.slots.counts.compactions,
    ),
    Shown(
        "counter", "draftwire_sessions_emptied_total",
        "Open sessions whose keys and values were dropped because others needed the room.",
        lambda of: of.engine.lease_counts.emptied,
    ),
    Shown(
        "counter", "draftwire_sessions_rebuilt_total", "Emptied sessions that came back into a pass.",
        lambda of: of.engine.counts.rebuilt,
    ),
    Shown(
        "counter", "draftwire_rebuilt_tokens_total", "Tokens fed once more for sessions emptied before.",
        lambda of: of.engine.counts.rebuilt_tokens,
    ),
    Shown(
        "counter", "draftwire_leases_dropped_total", "Leases ended early because others needed room.",
        lambda of: of.engine.lease_counts.dropped,
    ),
    Shown(
        "counter", "draftwire_leases_expired_total", "Leases whose time was over.",
        lambda of: of.engine.lease_counts.expired,
    ),
    Shown(
        "counter", "draftwire_prefix_hits_total",
        "Prompts whose beginning was held: by the session itself, or copied from another of its owner's.",
        lambda of: {"own": of.engine.lease_counts.own_hits, "shared": of.engine.lease_counts.shared_hits},
        "source",
    ),
    Shown(
        "counter", "draftwire_prefix_tokens_reused_total", "Tokens of prompts that need not be read again.",
        lambda of: {"own": of.engine.lease_counts.own_tokens, "shared": of.engine.lease_counts.shared_tokens},
        "source",
    ),
)  # fmt: skip

SHOWN = (*_SERVICE, *_SPECULATION, *_PASSES, *_MEMORY)


class ServerCollector(Collector):
    """Reads one server's counters whenever it is asked.

    Args:
        observed: the server.
    """

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield _model(self._observed.loaded)
        for shown in SHOWN:
            yield _family(shown, shown.read(self._observed))


def _model(loaded: LoadedTarget) -> Metric:
    """Which target, and whether its start found blocks and single tokens to give the same bits."""
    card = loaded.card
    labels = {
        "name": card.name,
        "architecture": card.architecture,
        "dtype": card.dtype,
        "exact": str(loaded.exactness.is_exact).lower(),
    }
    meaning = "The target; exact: whether every bit of block and one-at-a-time logits agreed at start."
    return InfoMetricFamily("draftwire_model", meaning, labels)


def _family(shown: Shown, figure: Figure) -> Metric:
    """A metric in Prometheus' terms."""
    if isinstance(figure, Histogram):
        return _histogram(shown, figure)
    kind = CounterMetricFamily if shown.kind == "counter" else GaugeMetricFamily
    if not isinstance(figure, Mapping):
        return kind(shown.name, shown.meaning, figure)
    family = kind(shown.name, shown.meaning, labels=[shown.label])
    for value, number in figure.items():
        family.add_metric([value], number)
    return family


def _histogram(shown: Shown, figure: Histogram) -> Metric:
    # The copy is of one moment, so the buckets fit each other; their sum may be one value behind.
    counts = list(figure.counts)
    names = [*map(floatToGoString, figure.bounds), "+Inf"]
    buckets = [(name, float(n)) for name, n in zip(names, accumulate(counts), strict=True)]
    return HistogramMetricFamily(shown.name, shown.meaning, buckets=buckets, sum_value=figure.total)


def _numbered(counts: list[int]) -> dict[str, int]:
    return {str(position): n for position, n in enumerate(list(counts))}
