"""Products with weights in an order that oneDNN prefers, reordered once instead of at every call."""

from __future__ import annotations

from functools import cache

import torch

# torch has no public name for these two operations; its compiler calls them as we do.
_OPS = torch.ops.mkldnn


@cache
def is_available(dtype: torch.dtype) -> bool:
    """Whether oneDNN reorders and multiplies weights of a type on this CPU."""
    eye = torch.eye(16, dtype=dtype)
    try:
        out = multiply(eye, reorder(eye, 8), None)
    except (AttributeError, RuntimeError, NotImplementedError):
        # In this order: built without oneDNN; the type needs instructions this CPU lacks; no kernel for it.
        return False
    return bool(torch.equal(out, eye))


def reorder(weight: torch.Tensor, expected_rows: int) -> torch.Tensor:
    """A weight ``[n_out, n_in]`` in the order oneDNN takes for so many rows: an opaque tensor.

    Any number of rows may be multiplied with it, but the number it is made for decides which kernels
    serve the others, hence their speed and the order in which they add.
    """
    packed: torch.Tensor = _OPS._reorder_linear_weight(weight.detach().contiguous(), expected_rows)  # noqa: SLF001  # no public name
    return packed


def multiply(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``rows @ W.T + bias`` with ``rows`` ``[n, n_in]`` and ``packed`` from `reorder`: ``[n, n_out]``."""
    out: torch.Tensor = _OPS._linear_pointwise(rows, packed, bias, "none", [], "")  # noqa: SLF001  # no public name
    return out
