"""The shared noise: the same bits everywhere, and really Gumbel."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftwire_protocol import noise

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**32 - 1)
TOKENS = st.integers(0, 2**31 - 1)
#: m <= 2^53 - 1, so -ln(-ln u) < 36.8.
MAX_NOISE = 36.8
#: Seed, position, token, hash.
CHECK_VALUES = [(0, 0, 0, 0x238275BC38FCBE91), (7, 123, 151935, 0xBE197D183E7F171D)]


@pytest.mark.parametrize(
    ("seed", "position", "token", "expected"),
    CHECK_VALUES,
)
def test_published_check_values(seed: int, position: int, token: int, expected: int) -> None:
    assert noise.token_hash(noise.position_key(seed, position), token) == expected


@given(SEEDS, POSITIONS, st.lists(TOKENS, min_size=1, max_size=20))
def test_numpy_and_torch_give_the_bits_of_the_scalar_definition(
    seed: int, position: int, tokens: list[int]
) -> None:
    torch = pytest.importorskip("torch")
    key = noise.position_key(seed, position)
    scalar = [noise.token_hash(key, token) for token in tokens]
    in_numpy = noise.token_hashes(key, np.array(tokens, np.int64))
    in_torch = noise.token_hashes(key, torch.tensor(tokens, dtype=torch.int64))
    assert in_numpy.view(np.uint64).tolist() == scalar
    assert in_torch.numpy().view(np.uint64).tolist() == scalar
    assert noise.numerators(in_torch).tolist() == noise.numerators(in_numpy).tolist()


@given(SEEDS, POSITIONS, TOKENS)
def test_uniform_is_strictly_inside_the_unit_interval(seed: int, position: int, token: int) -> None:
    value = noise.gumbel_noise(noise.position_key(seed, position), np.array([token], np.int64))
    assert np.isfinite(value).all()
    assert value[0] < MAX_NOISE


@given(SEEDS, POSITIONS, st.integers(1, 3000), st.data())
def test_no_token_above_the_threshold_is_missed(
    seed: int, position: int, count: int, data: st.DataObject
) -> None:
    key = noise.position_key(seed, position)
    hashes = [noise.token_hash(key, token) for token in range(count)]
    # At a token's own hash, where rounding the threshold up would lose it.
    threshold = max(0, hashes[data.draw(st.integers(0, count - 1))] - data.draw(st.integers(0, 1)))
    above = noise.tokens_hashed_above(key, count, threshold)
    assert [token for token in above.tolist() if hashes[token] >= threshold] == [
        token for token, word in enumerate(hashes) if word >= threshold
    ]
    # Little more comes along: only what shares the threshold's upper 31 bits.
    assert all(hashes[token] >= threshold - 2**33 for token in above.tolist())


def test_threads_do_not_share_buffers() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def tokens(key: int) -> bool:
        hashes = noise.token_hashes(key, np.arange(20_000, dtype=np.int64)).view(np.uint64)
        expected = np.flatnonzero(hashes >= np.uint64(2**63))
        return all(np.array_equal(noise.tokens_hashed_above(key, 20_000, 2**63), expected) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(tokens, range(4)))


@pytest.mark.parametrize("word", [0, 2**64 - 1, 2**63, 2**12 - 1])
def test_extreme_hashes_keep_the_noise_finite(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "token_hashes", lambda *_: np.array([word], np.uint64).view(np.int64))
    (value,) = noise.gumbel_noise(0, np.array([0]))
    assert np.isfinite(value)
    assert value < MAX_NOISE


def test_the_noise_of_the_check_values_is_pinned() -> None:
    # By hand from the published hashes: m = 2 (h >> 12) + 1, u = m 2^-53, -ln(-ln u).
    for seed, position, token, word in CHECK_VALUES:
        u = (2 * (word >> 12) + 1) / 2**53
        (value,) = noise.gumbel_noise(noise.position_key(seed, position), np.array([token]))
        assert value == pytest.approx(-math.log(-math.log(u)), rel=1e-14)


def test_noise_is_standard_gumbel_and_independent_over_positions() -> None:
    # Kolmogorov-Smirnov on 100,000 draws at a false-alarm rate of 1e-6, fixed seed: cannot flake.
    tokens = np.arange(50_000, dtype=np.int64)
    one = noise.gumbel_noise(noise.position_key(1, 0), tokens)
    two = noise.gumbel_noise(noise.position_key(1, 1), tokens)
    assert stats.kstest(np.concatenate([one, two]), "gumbel_r").pvalue > 1e-6
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    # Negative control: the same test rejects noise that is off by two hundredths.
    assert stats.kstest(np.concatenate([one, two]) + 0.02, "gumbel_r").pvalue < 1e-6


@given(SEEDS, POSITIONS, st.integers(1, 3000))
def test_every_loud_token_is_found(seed: int, position: int, count: int) -> None:
    key = noise.position_key(seed, position)
    everything = noise.gumbel_noise(key, np.arange(count))
    loud = noise.loud_tokens(key, count)
    assert set(np.flatnonzero(everything >= noise.LOUD)) <= set(loud.ids.tolist())
    assert loud.noise.tolist() == everything[loud.ids].tolist()
    # Hardly more than those come along: a few parts in 10^7.
    assert np.all(loud.noise > noise.LOUD - 1e-4)
