from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine.attention import attend, attend_by_hand, heads_to_fold, packed_attention
from draftwire_cloud.engine.cache import PackedCache
from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.layout import KvLayout, LayerShape
from draftwire_cloud.engine.packing import Plan, Span, make_plan
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.slots import SlotStore

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 4, 2, 16


class Layer(nn.Module):
    """Stands for an attention layer."""


def packed(n_new: tuple[int, ...] = (3, 2)) -> tuple[Plan, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A plan of fresh sessions with the query, key and value of its row, already in the slots."""
    layout = KvLayout({0: LayerShape(KV_HEADS, DIM)}, torch.float32, CPU)
    store = SlotStore(layout, 1 << 24)
    spans = [Span(store.open(100), [1] * n, n) for n in n_new]
    store.reserve([(span.slot, len(span.ids)) for span in spans])
    plan = make_plan(spans, ShapePolicy(), store.arena, CPU)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, heads, plan.n_rows, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    k, v = PackedCache(plan).update(k, v, 0)
    return plan, q, k, v


def test_sessions_see_themselves_only_and_padding_is_zero() -> None:
    plan, q, k, v = packed()
    out, weights = packed_attention(Layer(), q, k, v, None, packed=plan)
    assert weights is None
    assert out.shape == (1, plan.n_rows, HEADS, DIM)
    for rows in (slice(0, 3), slice(3, 5)):
        alone = functional.scaled_dot_product_attention(
            q[:, :, rows], k[:, :, rows], v[:, :, rows], is_causal=True, enable_gqa=True
        )
        torch.testing.assert_close(out[:, rows], alone.transpose(1, 2))
    assert not out[:, 5:].any()


def test_a_window_of_one_token_is_the_token_itself() -> None:
    plan, q, k, v = packed((4,))
    out, _ = packed_attention(Layer(), q, k, v, None, packed=plan, sliding_window=1)
    torch.testing.assert_close(out[0, :4], v[0].repeat_interleave(2, dim=0).transpose(0, 1)[:4])
    assert plan.windows == {1}


def test_by_hand_is_the_fused_kernel_when_nothing_is_special() -> None:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, HEADS, 8, DIM, generator=generator)
    k, v = (torch.randn(1, KV_HEADS, 12, DIM, generator=generator) for _ in range(2))
    mask = torch.arange(12)[None, :] <= torch.arange(8)[:, None] + 4
    fused = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    by_hand = attend_by_hand(q, k, v, mask, scaling=None, softcap=None, sinks=None)
    torch.testing.assert_close(by_hand, fused)
    barely_capped = attend_by_hand(q, k, v, mask, scaling=DIM**-0.5, softcap=1e4, sinks=None)
    torch.testing.assert_close(barely_capped, fused, atol=1e-4, rtol=1e-4)
    no_sink = attend_by_hand(q, k, v, mask, scaling=None, softcap=None, sinks=torch.full((HEADS,), -1e9))
    torch.testing.assert_close(no_sink, fused)


def test_a_sink_takes_its_share_of_the_softmax() -> None:
    q, k = torch.zeros(1, HEADS, 1, DIM), torch.zeros(1, KV_HEADS, 3, DIM)
    v, mask = torch.ones(1, KV_HEADS, 3, DIM), torch.ones(1, 3, dtype=torch.bool)
    out = attend_by_hand(q, k, v, mask, scaling=None, softcap=None, sinks=torch.zeros(HEADS))
    torch.testing.assert_close(out, torch.full_like(out, 3 / 4))


@pytest.mark.parametrize(
    "keyword",
    [{"position_bias": torch.zeros(1)}, {"is_causal": False}, {"output_attentions": True}, {"new": 0}],
)
def test_an_unknown_keyword_is_an_error(keyword: dict[str, Any]) -> None:
    plan, q, k, v = packed()
    with pytest.raises(UnsupportedModelError, match=next(iter(keyword))):
        packed_attention(Layer(), q, k, v, None, packed=plan, **keyword)


def test_known_and_empty_keywords_are_fine() -> None:
    plan, q, k, v = packed()
    packed_attention(
        Layer(),
        q,
        k,
        v,
        None,
        packed=plan,
        is_causal=True,
        output_attentions=False,
        new=None,
        use_cache=False,
    )


def test_what_does_not_come_from_the_plan_is_an_error() -> None:
    plan, q, k, v = packed()
    with pytest.raises(UnsupportedModelError, match="mask of its own"):
        packed_attention(Layer(), q, k, v, torch.ones(1), packed=plan)
    with pytest.raises(UnsupportedModelError, match="did not pass the plan"):
        packed_attention(Layer(), q, k, v, None)
    with pytest.raises(UnsupportedModelError, match="packed row"):
        packed_attention(Layer(), q[:, :, :2], k, v, None, packed=plan)
    with pytest.raises(UnsupportedModelError, match="changes its keys"):
        packed_attention(Layer(), q, k.clone(), v, None, packed=plan)


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "dim"), [(9, 3, 64), (12, 2, 128), (4, 4, 32)])
@pytest.mark.parametrize("n_queries", [8, 16, 32])
def test_folded_heads_attend_as_heads_do(n_heads: int, n_kv_heads: int, dim: int, n_queries: int) -> None:
    q = torch.randn(3, n_heads, n_queries, dim).bfloat16()
    k, v = torch.randn(2, 3, n_kv_heads, 512, dim).bfloat16()
    copies = heads_to_fold(q, n_kv_heads)
    assert copies == n_heads // n_kv_heads
    seen = torch.arange(512)[None, :] <= torch.arange(n_queries)[:, None] + 400
    bias = torch.zeros(3, 1, n_queries, 512).masked_fill(~seen, float("-inf")).bfloat16()
    plain = attend(q, k, v, bias, None, 1)
    assert torch.equal(attend(q, k, v, bias.repeat(1, 1, copies, 1), None, copies), plain)


def test_long_blocks_and_float32_are_not_folded() -> None:
    assert heads_to_fold(torch.zeros(1, 4, 33, 8, dtype=torch.bfloat16), 2) == 1
    assert heads_to_fold(torch.zeros(1, 4, 8, 8), 2) == 1
