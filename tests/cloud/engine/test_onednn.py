"""Reordered weights multiply like the weight they were made from."""

import pytest
import torch
from torch.nn import functional

from draftwire_cloud.engine import onednn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expected_rows", [1, 32])
def test_a_reordered_product_is_the_product(dtype: torch.dtype, expected_rows: int) -> None:
    if not onednn.is_available(dtype):
        pytest.skip("this build does not reorder weights of this type")
    weight, bias = torch.randn(48, 80).to(dtype), torch.randn(48).to(dtype)
    packed = onednn.reorder(weight, expected_rows)
    # Sums are float32 and only the result is rounded, to 8 bits in bf16.
    relative = 1e-5 if dtype == torch.float32 else 2**-8
    for n in (1, 2, 32, 33, 150):
        rows = torch.randn(n, 80).to(dtype)
        for b in (None, bias):
            wanted = functional.linear(rows.float(), weight.float(), None if b is None else b.float())
            torch.testing.assert_close(
                onednn.multiply(rows, packed, b).float(), wanted, atol=1e-4, rtol=relative
            )


def test_a_type_without_such_kernels_is_not_available() -> None:
    assert not onednn.is_available(torch.int32)
