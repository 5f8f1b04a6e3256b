"""Attention over a packed row: every session looks at its own slot."""

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.packing import Plan

PACKED_ATTENTION = "draftwire_packed"
"""Name under which transformers finds `packed_attention`."""

_HARMLESS = frozenset(
    {"cache_position", "output_router_logits", "position_embeddings", "position_ids", "use_cache"}
)
"""Keywords some models pass on that say nothing about how to attend."""

_FEW_QUERIES = 32
"""Up to so many query rows of a session, heads that share keys are folded into one."""

_EXPECTED = {"is_causal": True, "output_attentions": False}
"""Keywords that are fine with exactly this value."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed: Plan | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend every session's rows to its own keys and values.

    Args:
        module: the attention layer.
        query: ``[1, H, N, D]``.
        key: ``[1, Hkv, N, D]``, as `PackedCache.update` handed it out; already in the slots.
        value: ``[1, Hkv, N, D]``, likewise.
        attention_mask: must be ``None``: masks come from the plan.
        packed: the plan of this forward pass.
        scaling: factor on the scores; ``None`` for ``D ** -0.5``.
        dropout: must be 0.
        sliding_window: tokens a position sees, itself included; ``None`` for all.
        softcap: scores are bent to ``softcap * tanh(scores / softcap)`` (Gemma 2).
        s_aux: one extra score a head that takes part in the softmax only (attention sinks).
        others: must be ``None`` each: an ignored keyword would be a silently wrong model.

    Returns:
        ``[1, N, H, D]``, padding rows 0, and no attention weights.

    Raises:
        UnsupportedModelError: when the model asks for anything this function does not do.
    """
    del value
    plan, layer = _check(module, query, key, attention_mask, packed, dropout, others)
    if sliding_window is not None:
        plan.windows.add(sliding_window)
    _, n_heads, n_rows, dim = query.shape
    if not plan.groups:
        return query.new_zeros(1, n_rows, n_heads, dim), None
    # 1. Every group's query rows, [H, Q, D]; padding repeats rows.
    queries = query[0].index_select(1, plan.query_rows)
    # 2. One attention call a group.
    seen, at = [], 0
    for index, group in enumerate(plan.groups):
        count = len(group.members)
        rows = slice(at, at := at + count * group.n_queries)
        q = queries[:, rows].view(n_heads, count, group.n_queries, dim).transpose(0, 1)
        k, v = plan.arena.view(layer, group.first_row, group.n_keys, count=count, stride=group.stride)
        if softcap is None and s_aux is None:
            copies = heads_to_fold(q, k.shape[1])
            bias = plan.bias(index, sliding_window, query.dtype, copies)
            out = attend(q, k, v, bias, scaling, copies)
        else:
            mask = plan.mask(index, sliding_window)
            out = attend_by_hand(q, k, v, mask, scaling=scaling, softcap=softcap, sinks=s_aux)
        seen.append(out.transpose(1, 2).reshape(-1, n_heads, dim))
    # 3. Back to the packed row.
    together = seen[0] if len(seen) == 1 else torch.cat(seen)
    packed_out = together.index_select(0, plan.output_rows)
    packed_out[len(plan.kv_rows) :] = 0
    return packed_out[None], None


def heads_to_fold(q: torch.Tensor, n_kv_heads: int) -> int:
    """How many query heads share a call's row block; 1 where folding them gains nothing.

    The CPU kernel prepares 16-bit keys and values anew for every query head. Three heads of 8 queries as
    one head of 24 take 0.73 ms instead of 1.15 (16 sessions of SmolLM2, two Sapphire Rapids threads), with
    the same bits; from 64 queries on, and in float32, folding is slower or makes no difference.

    Args:
        q: ``[B, H, Q, D]``.
        n_kv_heads: Hkv.
    """
    few = q.shape[2] <= _FEW_QUERIES and q.dtype != torch.float32 and q.device.type == "cpu"
    return q.shape[1] // n_kv_heads if few else 1


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    scaling: float | None,
    copies: int,
) -> torch.Tensor:
    """Attention by torch's fused kernel, ``copies`` query heads to a head.

    Args:
        q: ``[B, H, Q, D]``.
        k: ``[B, Hkv, K, D]``.
        v: ``[B, Hkv, K, D]``.
        bias: ``[B, 1, copies * Q, K]``.
        scaling: see `packed_attention`.
        copies: from `heads_to_fold`.

    Returns:
        ``[B, H, Q, D]``.
    """
    n, n_heads, n_queries, dim = q.shape
    folded = q.reshape(n, n_heads // copies, copies * n_queries, dim)
    out = functional.scaled_dot_product_attention(folded, k, v, bias, scale=scaling, enable_gqa=True)
    return out.reshape(q.shape)


def attend_by_hand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with capped scores or sinks, which the fused kernel cannot do.

    Args:
        q: ``[B, H, Q, D]``.
        k: ``[B, Hkv, K, D]``.
        v: ``[B, Hkv, K, D]``.
        mask: boolean ``[B, 1, Q, K]``.
        scaling: factor on the scores.
        softcap: see `packed_attention`.
        sinks: ``[H]``, see `packed_attention`.

    Returns:
        ``[B, H, Q, D]`` in the type of ``q``; scores and softmax are float32.
    """
    n, n_heads, n_q, dim = q.shape
    grouped = (n, k.shape[1], -1, dim)
    scores = (q.reshape(grouped) @ k.transpose(2, 3)).view(n, n_heads, n_q, -1).float()
    scores = scores * (dim**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, n_heads, 1, 1).expand(n, n_heads, n_q, 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]].to(q.dtype)
    return (weights.reshape(n, k.shape[1], -1, k.shape[2]) @ v).view(q.shape)


def _check(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed: Plan | None,
    dropout: float,
    others: dict[str, Any],
) -> tuple[Plan, int]:
    """The plan and the layer to serve, or the reason why not."""
    name = type(module).__name__
    unknown = [k for k, v in others.items() if v is not None and v is not _EXPECTED.get(k)]
    unknown = [k for k in unknown if k not in _HARMLESS]
    if unknown:
        raise UnsupportedModelError(f"{name} passes {', '.join(unknown)} to attention; not supported")
    if packed is None:
        raise UnsupportedModelError(f"{name} did not pass the plan on to attention")
    if attention_mask is not None or dropout:
        raise UnsupportedModelError(f"{name} brings a mask of its own or dropout; not supported")
    if query.shape[0] != 1 or query.shape[2] != packed.n_rows:
        raise UnsupportedModelError(f"{name} attends from {tuple(query.shape)}, not from the packed row")
    layer = packed.owner(key)
    if layer is None:
        raise UnsupportedModelError(
            f"{name} changes its keys after caching them; latent caches are not supported"
        )
    return packed, layer


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
