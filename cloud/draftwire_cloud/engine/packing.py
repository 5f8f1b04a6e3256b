"""One forward pass for many sessions: all their new tokens in one row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch

from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.slots import Slot


@dataclass(frozen=True)
class Span:
    """One session's new tokens, appended behind what its slot holds.

    Attributes:
        slot: where the session's keys and values are.
        ids: new tokens, at least one; the first gets position ``slot.length``.
        num_logits: logits wanted for the last so many of them; 0 in a middle chunk of a prefill.
    """

    slot: Slot
    ids: Sequence[int]
    num_logits: int

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("a span needs at least one token")
        if not 0 <= self.num_logits <= len(self.ids):
            raise ValueError(f"cannot give logits of {self.num_logits} of {len(self.ids)} tokens")


@dataclass(frozen=True)
class Placed:
    """A span with its place in the packed row.

    Attributes:
        slot: the session's keys and values.
        past: tokens the slot held when the plan was made.
        rows: the span's rows of the packed row.
        n_queries: its query rows after padding.
        n_keys: its key/value rows after padding, new tokens included.
    """

    slot: Slot
    past: int
    rows: slice
    n_queries: int
    n_keys: int

    @property
    def n_new(self) -> int:
        """New tokens of the session."""
        return int(self.rows.stop - self.rows.start)


@dataclass
class Plan:
    """Everything the layers need to know about one packed forward pass.

    Attributes:
        placed: the spans in order; rows behind the last span are padding and belong to nobody.
        input_ids: ``[1, N]`` int64, padding rows 0.
        position_ids: ``[1, N]`` int64, each session counted from its own start, padding rows 0.
        logit_rows: ``[K]`` int64, rows whose logits are wanted, padded by repeating row 0; ``None`` when
            no span wants any.
        logit_ranges: for each span its part of ``logit_rows``.
        windows: sliding windows that layers have asked for so far.
    """

    placed: tuple[Placed, ...]
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    logit_rows: torch.Tensor | None
    logit_ranges: tuple[slice, ...]
    windows: set[int] = field(default_factory=set)
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)
    _owners: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Packed rows, padding included."""
        return int(self.input_ids.shape[1])

    def mask(self, index: int, window: int | None) -> torch.Tensor:
        """Which keys each query row of a span may see; made once, then shared by all layers.

        Args:
            index: which span.
            window: sliding window in tokens, the current one included; ``None`` for all.

        Returns:
            Boolean ``[n_queries, n_keys]``.
        """
        key = (index, window)
        if key not in self._masks:
            self._masks[key] = causal_mask(self.placed[index], window, self.input_ids.device)
        return self._masks[key]

    def remember_owner(self, k: torch.Tensor, layer: int) -> None:
        """Note that ``k``, as it leaves the cache, belongs to ``layer``."""
        self._owners[id(k)] = (layer, k)

    def owner(self, k: torch.Tensor) -> int | None:
        """The layer whose cache handed out this very tensor, or ``None``.

        Found by identity: layers that reuse another layer's keys (Gemma 3n and 4) are served from that
        layer, and models that rework keys after caching them (latent attention) are noticed.
        """
        layer, _ = self._owners.get(id(k), (None, None))
        return layer


def causal_mask(placed: Placed, window: int | None, device: torch.device) -> torch.Tensor:
    """Boolean ``[n_queries, n_keys]``: key j is seen from position i when ``i - window < j <= i``.

    Padding rows repeat the last real row, so that no row is empty (its softmax would be NaN).
    """
    row = torch.arange(placed.n_queries, device=device).clamp(max=placed.n_new - 1)
    position = (placed.past + row)[:, None]
    key = torch.arange(placed.n_keys, device=device)[None, :]
    seen = key <= position
    return seen if window is None else seen & (key > position - window)


def make_plan(spans: Sequence[Span], policy: ShapePolicy, device: torch.device) -> Plan:
    """Lay the spans out in one row.

    Raises:
        ValueError: when two spans share a slot.
    """
    if len({id(span.slot) for span in spans}) != len(spans):
        raise ValueError("two spans of one forward pass share a slot")
    edges = list(pairwise(accumulate((len(s.ids) for s in spans), initial=0)))
    placed = tuple(place(span, slice(*edge), policy) for span, edge in zip(spans, edges, strict=True))
    n_real = edges[-1][1] if edges else 0
    padding = [0] * (policy.rows(n_real) - n_real)
    ids = [i for s in spans for i in s.ids] + padding
    positions = [i for p in placed for i in range(p.past, p.past + p.n_new)] + padding
    rows, ranges = pick_logit_rows(spans, placed)
    if rows:
        rows += [0] * (policy.rows(len(rows)) - len(rows))
    return Plan(
        placed=placed,
        input_ids=torch.tensor([ids], dtype=torch.long, device=device),
        position_ids=torch.tensor([positions], dtype=torch.long, device=device),
        logit_rows=torch.tensor(rows, dtype=torch.long, device=device) if rows else None,
        logit_ranges=ranges,
    )


def place(span: Span, rows: slice, policy: ShapePolicy) -> Placed:
    """A span at its rows, with its padded shapes."""
    past, n = span.slot.length, len(span.ids)
    return Placed(span.slot, past, rows, n_queries=policy.queries(n), n_keys=policy.keys(past + n))


def pick_logit_rows(spans: Sequence[Span], placed: Sequence[Placed]) -> tuple[list[int], tuple[slice, ...]]:
    """The packed rows whose logits are wanted, and each span's part of that list."""
    rows: list[int] = []
    ranges = []
    for span, where in zip(spans, placed, strict=True):
        start = len(rows)
        rows += range(where.rows.stop - span.num_logits, where.rows.stop)
        ranges.append(slice(start, len(rows)))
    return rows, tuple(ranges)
