"""From logits to a token: temperature, top-k, top-p, min-p, typical-p, then the coupled choice.

Both ends run these functions: the cloud on the target's logits, the edge on the draft model's, both
after ``processors.py``. Order of the warpers as in transformers. A *candidate* is an id
that survived; candidates are kept sorted by falling score, equal scores by rising id, so that ties
always go to the lowest id.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftwire_protocol.errors import BrokenLogitsError
from draftwire_protocol.noise import (
    LOUD,
    Float64Array,
    Int64Array,
    gumbel_noise,
    loud_tokens,
    position_key,
)
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.scratch import scratch

Float32Array = npt.NDArray[np.float32]
#: Ids looked at first when searching a nucleus or a winner, and next if a nucleus is wider.
_FIRST_LOOK = 64
_SECOND_LOOK = 1024
_BLOCK = 64
_LOWEST = np.finfo(np.float32).min
#: Relative error of ``chance_sum``: seen up to 2.6e-7, from the temperature and the logits' rounding.
_FLOAT32_SLACK = 1e-6


class Candidates(NamedTuple):
    """Ids that survived so far, by falling score."""

    #: int64 ``[k]``
    ids: Int64Array
    #: float64 ``[k]``, logit / temperature
    scores: Float64Array


def top_candidates(logits: Float32Array, count: int) -> Candidates:
    """The ``count`` highest logits and every id tied with the last of them, unscaled; none at -inf.

    Exact: ``count`` blocks hold a maximum >= the count-th largest block maximum t, so at least
    ``count`` ids have logit >= t. One pass over the row and a sort of few instead of a full sort.

    Args:
        logits: float32 ``[n_tokens]``.
        count: how many at least, where there are as many; all of them when ``count >= n_tokens``.
    """
    if count * _BLOCK >= len(logits):
        picked = np.flatnonzero(logits >= _LOWEST)
    else:
        maxima = block_maxima(logits)
        bound = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
        # Where most ids are banned, "as high as the last one" must not mean every banned id.
        picked = np.flatnonzero(logits >= max(bound, _LOWEST))
    values = logits[picked]
    order = _falling_order(values)
    scores = values[order].astype(np.float64)
    kept = _count_with_ties(scores, count)
    return Candidates(picked[order[:kept]], scores[:kept])


def block_maxima(logits: Float32Array) -> Float32Array:
    """Largest logit of each block of ``_BLOCK`` ids, a shorter last one included.

    A block's ids lie ``n_tokens // _BLOCK`` apart: maxima over columns take a sixth of the time.
    """
    width = len(logits) // _BLOCK
    maxima = logits[: width * _BLOCK].reshape(_BLOCK, width).max(axis=0)
    rest = logits[width * _BLOCK :]
    return np.append(maxima, rest.max()) if len(rest) else maxima


def _falling_order(values: Float32Array) -> Int64Array:
    """Indices by falling value, equal ones by rising index.

    Sorts integers (float order turned round, index below it): for long rows a third of the time of a
    stable argsort, or less.
    """
    bits = (values + np.float32(0.0)).view(np.int32)  # -0 becomes +0
    # A float's bits, read as an integer, rise with its magnitude.
    falling = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32).astype(np.uint64)
    keys = (falling << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).view(np.int64)


def _count_with_ties(falling: Float64Array, count: int) -> int:
    """How many of ``falling`` are at least as large as the count-th."""
    if count >= len(falling):
        return len(falling)
    return int(np.searchsorted(-falling, -falling[count - 1], side="right"))


def chance_sum(logits: Float32Array, top: float, temperature: float) -> float:
    """Σ exp((logit - top) / T) over a whole row.

    Args:
        logits: float32 ``[n_tokens]``.
        top: the largest of them, so that the sum is at least 1.
        temperature: > 0.
    """
    chances = scratch("chances", len(logits), np.float32)
    np.subtract(logits, np.float32(top), out=chances)
    # What leaves float32 on the way down has no chance.
    with np.errstate(over="ignore"):
        np.divide(chances, np.float32(temperature), out=chances)
    np.exp(chances, out=chances)
    return float(chances.sum(dtype=np.float64))


def chance_sum_bound(logits: Float32Array, found: Candidates, temperature: float) -> float:
    """At least the Σ exp((logit - top) / T) of the ids that are not among ``found``.

    Every one of a block's ids counts as its largest, or as the last candidate where that is less.

    Args:
        logits: float32 ``[n_tokens]``.
        found: its top candidates, unscaled.
        temperature: > 0.
    """
    highest = np.minimum(block_maxima(logits), np.float32(found.scores[-1]))
    return _BLOCK * float(np.exp((highest - found.scores[0]) / temperature).sum())


def nucleus_size(scores: Float64Array, total: float, top_p: float) -> int:
    """Size of the smallest leading set with probability >= top_p; ``k + 1`` when all fall short.

    Args:
        scores: falling, ``[k]``.
        total: sum of exp(score - scores[0]) over the whole distribution.
        top_p: in (0, 1).
    """
    mass = np.cumsum(np.exp(scores - scores[0]))
    return int(np.searchsorted(mass, top_p * total, side="left")) + 1


def min_p_size(scores: Float64Array, min_p: float) -> int:
    """How many leading candidates are at least ``min_p`` times as likely as the first."""
    if min_p == 0.0:
        return len(scores)
    return int(np.searchsorted(-scores, -(scores[0] + math.log(min_p)), side="right"))


def is_typical(scores: Float64Array, typical_p: float) -> npt.NDArray[np.bool_]:
    """Which candidates are locally typical: surprise nearest to the entropy, up to ``typical_p``.

    Meister et al. 2023, "Locally typical sampling", eq. 9; as transformers does, ids as near as the
    last one stay too.

    Args:
        scores: ``[k]``.
        typical_p: in (0, 1).
    """
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    surprise = np.full(len(scores), np.inf)
    np.log(chances, out=surprise, where=chances > 0.0)
    surprise[chances > 0.0] *= -1.0
    entropy = float((chances * surprise)[chances > 0.0].sum())
    distance = np.abs(surprise - entropy)
    nearest = np.argsort(distance, kind="stable")
    last = min(int(np.count_nonzero(np.cumsum(chances[nearest]) < typical_p)), len(scores) - 1)
    return np.asarray(distance <= distance[nearest[last]])


def warp(logits: Float32Array, params: SamplingParams, limit: int | None = None) -> Candidates | None:
    """Temperature, top-k, top-p, min-p, typical-p; None when no filter is on and every id survives.

    Args:
        logits: float32 ``[n_tokens]``, padding ids already cut off.
        params: with temperature > 0.
        limit: keep at most this many; an approximation that only the edge may use, where it can
            cost acceptance but never changes the text.
    """
    kept: Candidates | None = None
    if params.top_k or limit:
        count = min(params.top_k or len(logits), limit or len(logits))
        kept = _scaled(top_candidates(logits, count), params.temperature)
    if params.top_p < 1.0:
        kept = _nucleus(logits, params, kept)
    if params.min_p > 0.0:
        kept = kept or _above_min_p(logits, params)
        kept = _leading(kept, min_p_size(kept.scores, params.min_p))
    if params.typical_p < 1.0:
        kept = kept or _scaled(top_candidates(logits, len(logits)), params.temperature)
        typical = is_typical(kept.scores, params.typical_p)
        kept = Candidates(kept.ids[typical], kept.scores[typical])
    return kept


def _scaled(candidates: Candidates, temperature: float) -> Candidates:
    return Candidates(candidates.ids, candidates.scores / temperature)


def _nucleus(logits: Float32Array, params: SamplingParams, kept: Candidates | None) -> Candidates:
    """Cut ``kept`` (or the whole row) to its nucleus."""
    if kept is None:
        return _nucleus_of_all(logits, params.temperature, params.top_p)
    total = float(np.exp(kept.scores - kept.scores[0]).sum())
    return _leading(kept, nucleus_size(kept.scores, total, params.top_p))


def _nucleus_of_all(logits: Float32Array, temperature: float, top_p: float) -> Candidates:
    """The nucleus of a whole row, looking at no more of it than decides."""
    found = top_candidates(logits, _FIRST_LOOK)
    some = _scaled(found, temperature)
    # 1. The total lies between the mass seen and that plus a bound; mostly both end at the same id.
    seen = float(np.exp(some.scores - some.scores[0]).sum())
    rest = chance_sum_bound(logits, found, temperature)
    if (size := _agreed_size(some.scores, seen, seen + rest, top_p)) is not None:
        return _leading(some, size)
    # 2. The total in float32, and more candidates.
    total = chance_sum(logits, found.scores[0], temperature)
    low, high = total * (1.0 - _FLOAT32_SLACK), total * (1.0 + _FLOAT32_SLACK)
    if (size := _agreed_size(some.scores, low, high, top_p)) is not None:
        return _leading(some, size)
    if len(logits) > _SECOND_LOOK * _BLOCK:
        some = _scaled(top_candidates(logits, _SECOND_LOOK), temperature)
        if (size := _agreed_size(some.scores, low, high, top_p)) is not None:
            return _leading(some, size)
    # 3. Everything, sorted, in float64.
    some = _scaled(top_candidates(logits, len(logits)), temperature)
    mass = np.cumsum(np.exp(some.scores - some.scores[0]))
    return _leading(some, int(np.searchsorted(mass, top_p * mass[-1], side="left")) + 1)


def _agreed_size(scores: Float64Array, low: float, high: float, top_p: float) -> int | None:
    """The nucleus' size if it is the same for every total between two, and within ``scores``."""
    size = nucleus_size(scores, high, top_p)
    return size if size <= len(scores) and size == nucleus_size(scores, low, top_p) else None


def _leading(candidates: Candidates, size: int) -> Candidates:
    return Candidates(candidates.ids[:size], candidates.scores[:size])


def _above_min_p(logits: Float32Array, params: SamplingParams) -> Candidates:
    """Every id that min-p alone keeps, and maybe a few more."""
    top, depth = float(logits.max()), params.temperature * math.log(params.min_p)
    # A hair lower, because the sum is rounded.
    floor = top + depth - 1e-6 * (1.0 + abs(top) + abs(depth))
    count = int(np.count_nonzero(logits >= np.float32(floor)))
    return _scaled(top_candidates(logits, max(count, 1)), params.temperature)


def coupled_choice(candidates: Candidates, key: int) -> int:
    """argmax over candidates of score + noise; exact ties go to the lowest id."""
    return best_of(candidates.ids, candidates.scores + gumbel_noise(key, candidates.ids))[1]


def best_of(ids: Int64Array, perturbed: Float64Array) -> tuple[float, int]:
    """The largest value, and the lowest id that has it."""
    best = perturbed.max()
    return float(best), int(ids[perturbed == best].min())


def best_over_all(logits: Float32Array, temperature: float, key: int) -> tuple[float, int]:
    """``best_of`` logit / T + noise when every id survives, without noise for each of them.

    The best of the loud ids and the likeliest one is a lower bound on the winner. Any other id has
    less noise than ``LOUD``, hence needs a logit no further than that below the bound.

    Args:
        logits: float32 ``[n_tokens]``, at least one of them finite.
        temperature: > 0.
        key: from ``position_key``.
    """
    loud = loud_tokens(key, len(logits))
    likeliest = np.array([logits.argmax()])
    found = [best_of(likeliest, scores_of(logits, likeliest, temperature) + gumbel_noise(key, likeliest))]
    if len(loud.ids):
        found.append(best_of(loud.ids, scores_of(logits, loud.ids, temperature) + loud.noise))
    near = _ids_from(logits, (max(found)[0] - LOUD) * temperature)
    if len(near):
        found.append(best_of(near, scores_of(logits, near, temperature) + gumbel_noise(key, near)))
    cost, token = min((-perturbed, token) for perturbed, token in found)
    return -cost, token


def scores_of(logits: Float32Array, ids: Int64Array, temperature: float) -> Float64Array:
    """logit / T of some ids."""
    return logits[ids].astype(np.float64) / temperature


def _ids_from(logits: Float32Array, floor: float) -> Int64Array:
    """Every id with a logit of at least ``floor``, and maybe some a hair below."""
    return np.flatnonzero(logits >= np.float32(floor - 1e-6 * (1.0 + abs(floor))))


def likeliest_id(logits: Float32Array) -> int:
    """The argmax, where it is a number; NumPy's stops at a NaN."""
    likeliest = int(np.argmax(logits))
    if not math.isfinite(logits[likeliest]):
        raise BrokenLogitsError(f"the model's logits are broken: the largest one is {logits[likeliest]}")
    return likeliest


def choose_token(logits: Float32Array, params: SamplingParams, position: int) -> int:
    """The coupled scheme's token: a pure function of (logits, params, position).

    argmax_i(logit_i / T + G_i) over the ids that survive the warpers; plain argmax at T = 0.

    Args:
        logits: float32 ``[n_tokens]``, padding ids cut off; -inf where an id is banned.
        params: with its seed.
        position: absolute index of the chosen token in prompt + output.

    Raises:
        BrokenLogitsError: they are not numbers, or every id is banned.
    """
    likeliest = likeliest_id(logits)
    if params.greedy:
        return likeliest
    key = position_key(params.seed, position)
    candidates = warp(logits, params)
    if candidates is None:
        return best_over_all(logits, params.temperature, key)[1]
    return coupled_choice(candidates, key)
