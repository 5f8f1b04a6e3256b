"""One forward pass for many sessions: all their new tokens in one row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

import torch

from draftwire_cloud.engine.arena import Arena
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.slots import Slot

#: Query rows up to which spans share an attention call.
_LONGEST_GROUPED = 32


class NewTokens(Protocol):
    """What a plan needs of a `Span`: its tokens, and which rows they go behind."""

    @property
    def ids(self) -> Sequence[int]:
        """The new tokens."""

    @property
    def num_logits(self) -> int:
        """Logits wanted for the last so many of them."""

    @property
    def past(self) -> int:
        """Tokens held in front of them."""

    @property
    def first_row(self) -> int:
        """Row of the first token held in the arena."""


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

    @property
    def past(self) -> int:
        """Tokens its slot holds now."""
        return self.slot.length

    @property
    def first_row(self) -> int:
        """Where its slot begins in the arena now."""
        return self.slot.first_row


@dataclass(frozen=True)
class Placed:
    """A span with its place in the packed row and in the KV store.

    Attributes:
        past: tokens the slot held when the plan was made.
        first_row: row of the slot's first token in the arena.
        rows: the span's rows of the packed row.
        n_queries: its query rows after padding.
        n_keys: its key/value rows after padding, new tokens included.
    """

    past: int
    first_row: int
    rows: slice
    n_queries: int
    n_keys: int

    @property
    def n_new(self) -> int:
        """New tokens of the session."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class Group:
    """Spans of equal padded shape whose slots lie equally far apart: one call of the attention kernel.

    Attributes:
        members: which spans, in the order of their slots.
        first_row: row of the first slot's first token in the arena.
        stride: rows from one slot to the next; 0 for one span.
        n_queries: query rows of each.
        n_keys: key/value rows of each.
    """

    members: tuple[int, ...]
    first_row: int
    stride: int
    n_queries: int
    n_keys: int


@dataclass
class Plan:
    """Everything the layers need to know about one packed forward pass.

    Attributes:
        arena: where keys and values are.
        placed: the spans in order; rows behind the last span are padding and belong to nobody.
        groups: the spans by attention call.
        input_ids: ``[1, N]`` int64, padding rows 0.
        position_ids: ``[1, N]`` int64, each session counted from its own start, padding rows 0.
        kv_rows: ``[n]`` int64, where in the arena the keys and values of each real row go.
        query_rows: ``[Q]`` int64, the packed row of each query row, group by group; padding queries repeat
            their span's last row, so that no row is empty (its softmax would be NaN).
        output_rows: ``[N]`` int64, for each packed row its row among the query rows; padding rows name
            the first.
        logit_rows: ``[K]`` int64, rows whose logits are wanted, padded by repeating row 0; ``None`` when
            no span wants any.
        logit_ranges: for each span its part of ``logit_rows``.
        windows: sliding windows that layers have asked for so far.
    """

    arena: Arena
    placed: tuple[Placed, ...]
    groups: tuple[Group, ...]
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    kv_rows: torch.Tensor
    query_rows: torch.Tensor
    output_rows: torch.Tensor
    logit_rows: torch.Tensor | None
    logit_ranges: tuple[slice, ...]
    windows: set[int] = field(default_factory=set)
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)
    _biases: dict[tuple[int, int | None, torch.dtype, int], torch.Tensor] = field(default_factory=dict)
    _owners: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Packed rows, padding included."""
        return int(self.input_ids.shape[1])

    def mask(self, index: int, window: int | None) -> torch.Tensor:
        """Which keys each query row of a group may see; made once, then shared by all layers.

        Args:
            index: which group.
            window: sliding window in tokens, the current one included; ``None`` for all.

        Returns:
            Boolean ``[B, 1, n_queries, n_keys]``.
        """
        key = (index, window)
        if key not in self._masks:
            group = self.groups[index]
            members = [self.placed[i] for i in group.members]
            self._masks[key] = causal_mask(members, window, self.input_ids.device)
        return self._masks[key]

    def bias(self, index: int, window: int | None, dtype: torch.dtype, copies: int = 1) -> torch.Tensor:
        """The mask as numbers to add to the scores, 0 or minus infinity; made once for all layers.

        Returns:
            ``[B, 1, copies * n_queries, n_keys]``: the same rows ``copies`` times.
        """
        key = (index, window, dtype, copies)
        if key not in self._biases:
            mask = self.mask(index, window)
            bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            self._biases[key] = bias.masked_fill_(~mask, float("-inf")).repeat(1, 1, copies, 1)
        return self._biases[key]

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


def causal_mask(members: Sequence[Placed], window: int | None, device: torch.device) -> torch.Tensor:
    """Boolean ``[B, 1, n_queries, n_keys]``: key j is seen from position i when ``i - window < j <= i``.

    Padding rows see what the last real row sees.
    """
    n_queries, n_keys = members[0].n_queries, members[0].n_keys
    past = torch.tensor([one.past for one in members], device=device)
    last = torch.tensor([one.n_new - 1 for one in members], device=device)
    row = torch.minimum(torch.arange(n_queries, device=device), last[:, None])
    position = (past[:, None] + row)[:, None, :, None]
    key = torch.arange(n_keys, device=device)
    seen = key <= position
    return seen if window is None else seen & (key > position - window)


def make_plan(spans: Sequence[NewTokens], policy: ShapePolicy, arena: Arena, device: torch.device) -> Plan:
    """Lay the spans out in one row.

    Args:
        spans: there must be room for the new tokens behind those held.
        policy: how shapes are padded.
        arena: where the slots' keys and values are.
        device: of the model.

    Raises:
        ValueError: when two spans share a slot.
    """
    if len({span.first_row for span in spans}) != len(spans):
        raise ValueError("two spans of one forward pass share a slot")
    edges = list(pairwise(accumulate((len(s.ids) for s in spans), initial=0)))
    placed = tuple(place(span, slice(*edge), policy) for span, edge in zip(spans, edges, strict=True))
    groups = group_spans(placed)
    n_real = edges[-1][1] if edges else 0
    n_padding = policy.rows(n_real) - n_real
    padding = [0] * n_padding
    positions = [i for p in placed for i in range(p.past, p.past + p.n_new)]
    rows, ranges = pick_logit_rows(spans, placed)
    if rows:
        rows += [0] * (policy.rows(len(rows)) - len(rows))
    query_rows, output_rows = route_rows(placed, groups)

    def vector(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=device)

    return Plan(
        arena=arena,
        placed=placed,
        groups=groups,
        input_ids=vector([i for s in spans for i in s.ids] + padding)[None],
        position_ids=vector(positions + padding)[None],
        kv_rows=vector(
            [r for p in placed for r in range(p.first_row + p.past, p.first_row + p.past + p.n_new)]
        ),
        query_rows=vector(query_rows),
        output_rows=vector(output_rows + padding),
        logit_rows=vector(rows) if rows else None,
        logit_ranges=ranges,
    )


def place(span: NewTokens, rows: slice, policy: ShapePolicy) -> Placed:
    """A span at its rows, with its padded shapes."""
    past, n = span.past, len(span.ids)
    return Placed(past, span.first_row, rows, policy.queries(n), policy.keys(past + n))


def group_spans(placed: Sequence[Placed]) -> tuple[Group, ...]:
    """Put spans together that one attention call can serve.

    Long spans stay alone: they fill the processor by themselves, and the CPU kernel packs keys or does
    not by how many long spans it is given, which changes bits (torch 2.13, ``FlashAttentionKernel.cpp``).
    """

    def shape(index: int) -> tuple[int, int]:
        return placed[index].n_queries, placed[index].n_keys

    groups = []
    order = sorted(range(len(placed)), key=lambda i: (*shape(i), placed[i].first_row))
    while order:
        n_queries, n_keys = shape(order[0])
        first = placed[order[0]].first_row
        stride = placed[order[1]].first_row - first if len(order) > 1 else 0
        n = 1
        while (
            n < len(order)
            and n_queries <= _LONGEST_GROUPED
            and shape(order[n]) == (n_queries, n_keys)
            and placed[order[n]].first_row == first + n * stride
        ):
            n += 1
        groups.append(Group(tuple(order[:n]), first, stride if n > 1 else 0, n_queries, n_keys))
        del order[:n]
    return tuple(groups)


def route_rows(placed: Sequence[Placed], groups: Sequence[Group]) -> tuple[list[int], list[int]]:
    """From packed rows to the groups' query rows and back, see `Plan`."""
    query_rows: list[int] = []
    output_rows = [0] * (placed[-1].rows.stop if placed else 0)
    for group in groups:
        for index in group.members:
            rows = placed[index].rows
            output_rows[rows] = range(len(query_rows), len(query_rows) + placed[index].n_new)
            query_rows += range(rows.start, rows.stop)
            query_rows += [rows.stop - 1] * (group.n_queries - placed[index].n_new)
    return query_rows, output_rows


def pick_logit_rows(
    spans: Sequence[NewTokens], placed: Sequence[Placed]
) -> tuple[list[int], tuple[slice, ...]]:
    """The packed rows whose logits are wanted, and each span's part of that list."""
    rows: list[int] = []
    ranges = []
    for span, where in zip(spans, placed, strict=True):
        start = len(rows)
        rows += range(where.rows.stop - span.num_logits, where.rows.stop)
        ranges.append(slice(start, len(rows)))
    return rows, tuple(ranges)
