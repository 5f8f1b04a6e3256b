"""Which shapes give a row the same bits on this machine: measured, not written down.

Kernels are chosen by shape and add in different orders. Row counts that agree with a large product are a
property of library and CPU (seen so far: float32 MKL everything but 1-3, 5-7 and 9-11; FBGEMM on AVX2
everything but sums ending in its 1- and 2-row kernels, such as 1, 2, 7, 14, 31; oneDNN everything, or for
some layers everything but 1; bf16 everything, or everything but 1). Finding them takes tenths of a second.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch.nn import functional

from draftwire_cloud.engine.team import Team
from draftwire_cloud.engine.weights import BlockedLinear, HalfLinear, half_available

HALF_ROWS_CHECKED = 1024
PLAIN_ROWS_CHECKED = 64
"""Counts up to here are checked. Larger passes are not padded: no plain kernel was seen to change its
order beyond 12 rows, while FBGEMM's pattern repeats for ever."""

_PLAIN_SHAPES = ((96, 16), (256, 1536), (1536, 256))
_QUERY_MULTIPLES = (1, 2, 4, 8)
_QUERIES = 48
_LARGEST_MEASURED = 20_000


def agreeing_counts(multiply: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> set[int]:
    """Counts n for which ``multiply(rows[:n])`` has the bits of ``multiply(rows)[:n]``.

    Args:
        multiply: maps ``[n, n_in]`` to ``[n, n_out]``.
        rows: ``[most, n_in]``.
    """
    with torch.inference_mode():
        whole = multiply(rows)
        return {n for n in range(1, len(rows) + 1) if torch.equal(multiply(rows[:n].clone()), whole[:n])}


@cache
def half_row_counts() -> tuple[int, ...]:
    """Agreeing row counts of `HalfLinear`, ascending; empty where it is not available."""
    if not half_available():
        return ()
    generator = torch.Generator().manual_seed(0)
    linear = HalfLinear(torch.randn(16, 96, generator=generator).bfloat16(), None, Team(1))
    return tuple(sorted(agreeing_counts(linear, torch.randn(HALF_ROWS_CHECKED, 96, generator=generator))))


@cache
def plain_row_counts(dtype: torch.dtype) -> tuple[int, ...]:
    """Agreeing row counts of torch's own products with a weight on the CPU, ascending."""
    generator = torch.Generator().manual_seed(0)
    agreeing = set(range(1, PLAIN_ROWS_CHECKED + 1))
    for n_in, n_out in _PLAIN_SHAPES:
        weight = torch.randn(n_out, n_in, generator=generator).to(dtype)
        rows = torch.randn(PLAIN_ROWS_CHECKED, n_in, generator=generator).to(dtype)
        agreeing &= agreeing_counts(lambda x, w=weight: functional.linear(x, w), rows)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    return tuple(sorted(agreeing))


def blocked_row_counts(model: torch.nn.Module) -> tuple[int, ...]:
    """Agreeing row counts of all a model's `BlockedLinear` layers, ascending.

    oneDNN picks its kernel by all three sizes, so every shape that the model has is measured; but for
    output layers, which would take seconds.
    """
    layers = {(m.in_features, m.out_features): m for m in model.modules() if isinstance(m, BlockedLinear)}
    generator = torch.Generator().manual_seed(0)
    agreeing = set(range(1, PLAIN_ROWS_CHECKED + 1))
    for (n_in, n_out), layer in layers.items():
        if n_out <= _LARGEST_MEASURED:
            agreeing &= agreeing_counts(layer, torch.randn(PLAIN_ROWS_CHECKED, n_in, generator=generator))
    return tuple(sorted(agreeing))


@cache
def query_multiple(dtype: torch.dtype, n_heads: int = 4, n_kv_heads: int = 2, dim: int = 64) -> int:
    """The smallest multiple of query rows for which attention on the CPU agrees.

    In bf16 rounding hides most disagreements, so a short measurement proves little: 8, which held on
    every CPU tried, is taken there.

    Args:
        dtype: arithmetic type.
        n_heads: query heads of the model that is served.
        n_kv_heads: key and value heads, a divisor of ``n_heads``.
        dim: numbers in a head.
    """
    if dtype != torch.float32:
        return _QUERY_MULTIPLES[-1]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, n, dim, generator=generator)
        for heads, n in ((n_heads, _QUERIES), (n_kv_heads, 512), (n_kv_heads, 512))
    )
    mask = torch.arange(512)[None, :] <= torch.arange(_QUERIES)[:, None] + 400

    def attend(rows: torch.Tensor) -> torch.Tensor:
        """Attention of ``[n, n_heads * dim]`` query rows."""
        queries = rows.view(len(rows), n_heads, dim).transpose(0, 1)[None]
        seen = functional.scaled_dot_product_attention(queries, k, v, mask[: len(rows)], enable_gqa=True)
        return seen[0].transpose(0, 1).reshape(len(rows), -1)

    counts = agreeing_counts(attend, q[0].transpose(0, 1).reshape(_QUERIES, -1))
    fitting = (m for m in _QUERY_MULTIPLES if counts.issuperset(range(m, _QUERIES + 1, m)))
    return next(fitting, _QUERY_MULTIPLES[-1])
