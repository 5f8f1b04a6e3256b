import pytest
import torch
from torch import nn
from torch.nn import functional

from draftwire_cloud.engine import onednn
from draftwire_cloud.engine.agreement import (
    HALF_ROWS_CHECKED,
    blocked_row_counts,
    half_row_counts,
    plain_row_counts,
    query_multiple,
)
from draftwire_cloud.engine.team import Team
from draftwire_cloud.engine.weights import (
    BlockedLinear,
    HalfEmbedding,
    HalfLinear,
    fits_half,
    half_available,
    power_of_two_scale,
    prepare,
)

needs_half = pytest.mark.skipif(not half_available(), reason="this build cannot multiply float16 weights")
needs_blocked = pytest.mark.skipif(
    not onednn.is_available(torch.float32), reason="this build has no blocked float32 weights"
)


def bf16_weight(n_out: int, n_in: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_out, n_in, generator=generator).mul(float(n_in) ** -0.5).bfloat16()


@needs_half
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(96, 64), (259, 70), (640, 1024)])
def test_half_linear_is_the_float32_product(shape: tuple[int, int], n_threads: int) -> None:
    weight, bias = bf16_weight(*shape), torch.randn(shape[0]).bfloat16()
    x = torch.randn(2, 5, shape[1])
    out = HalfLinear(weight, bias, Team(n_threads))(x)
    torch.testing.assert_close(out, functional.linear(x, weight.float(), bias.float()), atol=2e-5, rtol=1e-5)


@needs_half
def test_threads_do_not_change_a_bit() -> None:
    weight, x = bf16_weight(640, 1024), torch.randn(6, 1024)
    assert torch.equal(HalfLinear(weight, None, Team(1))(x), HalfLinear(weight, None, Team(2))(x))


@needs_half
@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1.0, 3e4, 1e30])
def test_half_linear_holds_bf16_weights_of_any_magnitude_exactly(magnitude: float) -> None:
    weight = (bf16_weight(64, 64).float() * magnitude).bfloat16()
    out = HalfLinear(weight, None, Team(1))(torch.eye(64))
    assert torch.equal(out.T, weight.float())


@needs_half
def test_a_weight_of_zeros_gives_zeros() -> None:
    assert power_of_two_scale(torch.zeros(2, 2)) == 1.0
    assert not HalfLinear(torch.zeros(16, 16), None, Team(1))(torch.ones(1, 16)).any()


def test_only_16_bit_values_count_as_half() -> None:
    exact = bf16_weight(8, 8)
    assert fits_half(exact)
    assert fits_half(exact.float())
    assert fits_half(torch.randn(8, 8).half().float())
    assert not fits_half(torch.randn(8, 8))


@needs_half
def test_agreeing_counts_of_half_weights_hold_for_other_shapes() -> None:
    counts = half_row_counts()
    assert counts[-1] <= HALF_ROWS_CHECKED
    linear, x = HalfLinear(bf16_weight(272, 512), None, Team(2)), torch.randn(64, 512)
    whole = linear(x)
    assert all(torch.equal(linear(x[:n]), whole[:n]) for n in counts if n <= 64)


@needs_blocked
def test_blocked_linear_is_the_float32_product_at_every_row_count() -> None:
    weight, bias, x = torch.randn(96, 130), torch.randn(96), torch.randn(40, 130)
    linear = BlockedLinear(weight, bias)
    whole = linear(x)
    torch.testing.assert_close(whole, functional.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    assert all(torch.equal(linear(x[:n].clone()), whole[:n]) for n in range(1, 41))


def test_agreeing_counts_of_plain_weights_hold_for_other_shapes() -> None:
    weight, x = torch.randn(300, 512), torch.randn(64, 512)
    whole = functional.linear(x, weight)
    for n in plain_row_counts(torch.float32):
        assert torch.equal(functional.linear(x[:n].clone(), weight), whole[:n])
    assert query_multiple(torch.float32) in (1, 2, 4, 8)


class Small(nn.Module):
    """An embedding, two linear layers and a norm."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.body = nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48))
        self.head = nn.Linear(48, 20, bias=False)
        self.to(dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(self.embed(ids)))
        return out


@needs_half
@needs_blocked
@pytest.mark.parametrize(("dtype", "form"), [(torch.bfloat16, "half"), (torch.float32, "blocked")])
def test_a_prepared_model_computes_the_same_in_float32(dtype: torch.dtype, form: str) -> None:
    torch.manual_seed(0)
    model, plain = Small(dtype), Small(dtype)
    plain.load_state_dict(model.state_dict())
    with torch.inference_mode():
        expected = plain.float()(torch.arange(20))
        forms = prepare(model, Team(2))
        torch.testing.assert_close(model(torch.arange(20)), expected, atol=1e-5, rtol=1e-5)
    assert forms == {"half": 0, "blocked": 0, "plain": 0} | {form: 2}
    assert isinstance(model.embed, HalfEmbedding) == (form == "half")


def test_a_team_returns_results_in_order_and_survives_an_error() -> None:
    team = Team(3)

    def fail() -> torch.Tensor:
        raise RuntimeError("a job failed")

    for bad in range(3):
        jobs = [fail if i == bad else lambda: torch.ones(1) for i in range(3)]
        with pytest.raises(RuntimeError, match="a job failed"):
            team.run(jobs)
    assert [int(t) for t in team.run([lambda i=i: torch.tensor(i) for i in range(3)])] == [0, 1, 2]  # type: ignore[misc]


@needs_blocked
def test_rows_of_every_blocked_layer_agree_at_the_counts_found() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.ModuleList(
        BlockedLinear(torch.randn(n_out, n_in, generator=generator), None)
        for n_in, n_out in ((1536, 576), (576, 1536), (96, 16))
    )
    counts = blocked_row_counts(model)
    assert counts
    for layer in model.children():
        assert isinstance(layer, BlockedLinear)
        rows = torch.randn(64, layer.in_features, generator=generator)
        whole = layer(rows)
        assert all(torch.equal(layer(rows[:n].clone()), whole[:n]) for n in counts)
