"""Linear layers with prepared weights, for CPUs whose plain kernels verify slowly.

Verification multiplies 2 to 20 rows with every weight. On a CPU without bf16 instructions torch's own
kernels take nearly n times as long for n rows as for one, and then speculation gains nothing. Two
prepared forms are as fast for one row as memory allows and little slower for a handful:

* `HalfLinear`: float16 weights, float32 activations and sums (FBGEMM). Half the memory traffic of
  float32, and exact for weights that are bf16 or float16 to begin with, as nearly all checkpoints are.
* `BlockedLinear`: float32 weights in oneDNN's blocked order, for checkpoints that are truly float32.

Milliseconds for 1536 -> 8960, two threads of a Zen 3 server core, 1 / 5 / 9 / 17 rows:
plain float32 3.2 / 12.7 / 15.6 / 24; plain bf16 1.8 / 7.2 / 13.3 / 24; half 1.3 / 1.4 / 2.5 / 3.5;
blocked 3.4 / 4.9 / 7.2 / 8.8.
"""

import warnings
from functools import cache, partial
from math import frexp

import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine import onednn
from draftwire_cloud.engine.team import Team

_SPLIT_ABOVE = 1 << 18
"""Weights with fewer elements than this are not worth a second thread."""

_HALF_TOP = 15
"""Weights are scaled so that the largest lies in [2^14, 2^15), well inside float16."""


@cache
def half_available() -> bool:
    """Whether this torch build and CPU can multiply float32 rows with float16 weights."""
    try:
        with warnings.catch_warnings():
            # torch calls the operation deprecated, once a process; nothing replaces it on AVX2 CPUs.
            warnings.simplefilter("ignore")
            packed = torch.fbgemm_pack_gemm_matrix_fp16(torch.eye(16))
            out = torch.fbgemm_linear_fp16_weight_fp32_activation(torch.eye(16), packed, None)
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.equal(out, torch.eye(16)))


def fits_half(weight: torch.Tensor) -> bool:
    """Whether a weight is one that `HalfLinear` holds exactly: bf16 or float16, in storage or in value.

    Exactly but for elements below 2^-32 of the matrix's largest: those move by at most 2^-40 of it,
    65,000 times less than the rounding of a float32 sum.
    """
    if weight.dtype in (torch.bfloat16, torch.float16):
        return True
    return any(torch.equal(weight.to(t).to(weight.dtype), weight) for t in (torch.bfloat16, torch.float16))


def power_of_two_scale(weight: torch.Tensor) -> float:
    """The power of two that brings the largest element to [2^14, 2^15); 1 for an all-zero weight."""
    low, high = torch.aminmax(weight)
    largest = max(-float(low), float(high))
    return 2.0 ** (_HALF_TOP - frexp(largest)[1]) if largest else 1.0


class HalfLinear(nn.Module):
    """``x @ W.T + b`` with float32 ``x`` and float16 ``W``, summed in float32.

    The operation itself is single-threaded, so ``W`` is cut by output columns and shared by a team;
    a cut by columns does not change any sum. For one row the limit is memory, and two threads draw
    about a quarter more of it than one.

    Args:
        weight: ``[n_out, n_in]``, see `fits_half`.
        bias: ``[n_out]`` or ``None``.
        team: threads to share the work.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, team: Team) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._team = team
        self._scale = power_of_two_scale(weight)
        n_parts = team.n if weight.numel() >= _SPLIT_ABOVE else 1
        parts = weight.detach().chunk(n_parts)
        self._parts = team.run([partial(_pack, part, self._scale) for part in parts])
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``[..., n_in]`` to ``[..., n_out]``."""
        rows = x.reshape(-1, self.in_features)
        multiply = torch.fbgemm_linear_fp16_weight_fp32_activation
        parts = self._team.run([partial(multiply, rows, part, None) for part in self._parts])
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        # A product with a power of two is exact, so scaling leaves no trace in the result.
        out = out.mul_(1.0 / self._scale)
        if self._bias is not None:
            out = out.add_(self._bias)
        return out.view(*x.shape[:-1], self.out_features)


def _pack(weight: torch.Tensor, scale: float) -> torch.Tensor:
    """A weight ``[n_out, n_in]`` times ``scale``, in FBGEMM's order."""
    return torch.fbgemm_pack_gemm_matrix_fp16(weight.to(torch.float32, copy=True).mul_(scale).contiguous())


class BlockedLinear(nn.Module):
    """``x @ W.T + b`` in float32, with ``W`` reordered once for oneDNN.

    Args:
        weight: ``[n_out, n_in]``.
        bias: ``[n_out]`` or ``None``.
    """

    _EXPECTED_ROWS = 32  # the layout for this many rows was the fastest at every count from 1 to 32

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = onednn.reorder(weight.float(), self._EXPECTED_ROWS)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 ``[..., n_in]`` to ``[..., n_out]``."""
        rows = x.reshape(-1, self.in_features)
        return onednn.multiply(rows, self._weight, self._bias).view(*x.shape[:-1], self.out_features)


class HalfEmbedding(nn.Module):
    """Embedding rows kept in 16 bits and handed out in float32.

    Args:
        weight: ``[n_vocab, n_embd]`` in a 16-bit type.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight.detach()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids ``[...]`` to float32 ``[..., n_embd]``."""
        return functional.embedding(ids, self.weight).float()


def prepare(model: nn.Module, team: Team) -> dict[str, int]:
    """Turn a CPU model to float32 arithmetic with prepared weights, in place, one layer at a time.

    Args:
        model: any model; layers that are not exactly ``nn.Linear`` or ``nn.Embedding`` become plain
            float32.
        team: threads for the half-width layers.

    Returns:
        How many linear layers took which form: keys ``half``, ``blocked`` and ``plain``.
    """
    forms = {"half": 0, "blocked": 0, "plain": 0}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                prepared, form = prepare_linear(child, team)
                forms[form] += 1
                setattr(parent, name, prepared)
            elif type(child) is nn.Embedding and child.weight.dtype in (torch.bfloat16, torch.float16):
                setattr(parent, name, HalfEmbedding(child.weight))
    model.to(torch.float32)
    return forms


def prepare_linear(linear: nn.Linear, team: Team) -> tuple[nn.Module, str]:
    """The best form of one linear layer on this CPU, and its name."""
    if half_available() and fits_half(linear.weight):
        return HalfLinear(linear.weight, linear.bias, team), "half"
    if onednn.is_available(torch.float32):
        return BlockedLinear(linear.weight, linear.bias), "blocked"
    return linear, "plain"
