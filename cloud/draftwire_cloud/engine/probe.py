"""Two questions asked of a target before it serves: is the packed path right, and is it exact."""

from dataclasses import dataclass

import numpy as np
import torch

from draftwire_cloud.engine.architecture import uses_sliding_window
from draftwire_cloud.engine.attention import PACKED_ATTENTION
from draftwire_cloud.engine.errors import UnsupportedModelError
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.slots import Slot
from draftwire_cloud.engine.target import Target

PROBE_TOKENS = 28
LONGEST_PROBED_WINDOW = 512
LONGEST_BLOCK = 17
ALLOWED_FLOAT32 = 1e-3
ALLOWED_BF16 = 0.4
"""Most `typical_error`. Other contexts differ by 0.7 to 1.4, a sound bf16 model of 28 layers by 0.1."""

NOISE_MARGIN = 4.0


@dataclass(frozen=True)
class ExactnessReport:
    """Block verification against one token at a time, in the same engine.

    Attributes:
        positions: positions compared.
        differing_positions: positions whose logits differ in any bit.
        flipped_argmax: positions whose best token differs.
        max_abs_diff: largest difference of any logit.
        min_gap: smallest distance between best and second-best logit, one at a time; a difference
            that stays below half of it cannot flip a token.
    """

    positions: int
    differing_positions: int
    flipped_argmax: int
    max_abs_diff: float
    min_gap: float

    @property
    def is_exact(self) -> bool:
        """Whether every bit agreed."""
        return self.differing_positions == 0

    def summary(self) -> str:
        """One line for the log."""
        if self.is_exact:
            return f"exact: {self.positions} positions, every bit of block and one-at-a-time logits agrees"
        return (
            f"NOT exact: {self.differing_positions} of {self.positions} positions differ, by up to "
            f"{self.max_abs_diff:.2e} (smallest gap between two best tokens {self.min_gap:.2e}); "
            f"{self.flipped_argmax} choose another token"
        )


def check_architecture(target: Target, rng: np.random.Generator) -> None:
    """Compare packed passes, a rollback included, with the model's own plain forward pass.

    Args:
        target: the loaded target.
        rng: source of the probe's token ids.

    Raises:
        UnsupportedModelError: when they disagree; the message says by how much.
    """
    n = probe_length(target)
    texts = rng.integers(0, target.facts.n_vocab, size=(2, n)).tolist()
    packed = packed_logits(target, texts, rng)
    for ours, text in zip(packed, texts, strict=True):
        theirs = reference_logits(target, text)
        error, bound = typical_error(ours, theirs), allowed_error(target, text, theirs)
        # `not <=`: a NaN is an error too
        if not error <= bound:
            raise UnsupportedModelError(
                f"{target.facts.architecture}: packed verification differs from the model's own forward "
                f"pass by {error:.2g} standard deviations of a logit (allowed: {bound:g})"
            )


def typical_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Median over positions of the rms difference in standard deviations, in the worse half of a text.

    Medians, because in bf16 single positions of a sound model are off by much more than the rest; halves,
    because a bad rollback only spoils the second.

    Args:
        ours: ``[n, n_vocab]``.
        theirs: ``[n, n_vocab]``.
    """
    per_position = (ours - theirs).square().mean(dim=-1).sqrt() / theirs.std(dim=-1)
    return max(float(half.median()) for half in per_position.chunk(2))


def allowed_error(target: Target, ids: list[int], theirs: torch.Tensor) -> float:
    """The most `typical_error` a sound target may have on a text.

    In bf16 the noise depends on the model, from 0.007 (2 layers) to 0.1 (28 layers). Where the model has
    two ways to attend of its own, their difference measures it.

    Args:
        target: the loaded target.
        ids: the text.
        theirs: ``[n, n_vocab]`` of the eager pass.
    """
    if target.facts.dtype == "float32":
        return ALLOWED_FLOAT32
    try:
        other = reference_logits(target, ids, "sdpa")
    except (ImportError, ValueError):  # transformers knows that sdpa is wrong for this model
        return ALLOWED_BF16
    return min(ALLOWED_BF16, NOISE_MARGIN * max(typical_error(other, theirs), ALLOWED_FLOAT32))


def probe_length(target: Target) -> int:
    """Tokens to probe with: beyond the sliding window where that is affordable."""
    limit = target.facts.context_length
    window = getattr(target.model.config.get_text_config(decoder=True), "sliding_window", None)
    if window is not None and uses_sliding_window(target.model.config) and window <= LONGEST_PROBED_WINDOW:
        return int(min(window + PROBE_TOKENS, limit))
    return int(min(PROBE_TOKENS, limit))


def packed_logits(target: Target, texts: list[list[int]], rng: np.random.Generator) -> list[torch.Tensor]:
    """Logits ``[n, n_vocab]`` of each text by prefill, a wrong draft, rollback and verification."""
    n = len(texts[0])
    head = n // 2
    slots = [target.slots.open(n) for _ in texts]
    try:
        pairs = list(zip(slots, texts, strict=True))
        first = target.forward([Span(slot, text[:head], head) for slot, text in pairs])
        wrong = rng.integers(0, target.facts.n_vocab, size=(len(texts), n - head)).tolist()
        target.forward([Span(slot, ids, 1) for slot, ids in zip(slots, wrong, strict=True)])
        for slot in slots:
            slot.truncate(head)
        rest = target.forward([Span(slot, text[head:], n - head) for slot, text in pairs])
    finally:
        for slot in slots:
            target.slots.release(slot)
    return [torch.cat(parts) for parts in zip(first, rest, strict=True)]


@torch.inference_mode()
def reference_logits(target: Target, ids: list[int], attention: str = "eager") -> torch.Tensor:
    """Logits ``[n, n_vocab]`` of the model's own forward pass, without any cache."""
    model = target.model
    try:
        model.set_attn_implementation(attention)
        out = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    finally:
        model.set_attn_implementation(PACKED_ATTENTION)
    logits: torch.Tensor = out.logits[0]
    return logits.float()


def exactness_self_test(target: Target, n_positions: int, rng: np.random.Generator) -> ExactnessReport:
    """Decode random text one token at a time and again in blocks, and compare every bit.

    Costs about ``n_positions`` forward passes of one token and a few of a block.

    Args:
        target: the loaded target.
        n_positions: positions to compare; fewer when the context is shorter.
        rng: source of text, block sizes, neighbours and wrong drafts.
    """
    n_prompt = int(rng.integers(2, 12))
    n_positions = min(n_positions, target.facts.context_length - n_prompt)
    ids = rng.integers(0, target.facts.n_vocab, size=n_prompt + n_positions).tolist()
    one = one_at_a_time(target, ids, n_prompt)
    block = in_blocks(target, ids, n_prompt, rng)
    best = one.topk(2, dim=-1).values
    return ExactnessReport(
        positions=n_positions,
        differing_positions=int((one != block).any(dim=-1).sum()),
        flipped_argmax=int((one.argmax(-1) != block.argmax(-1)).sum()),
        max_abs_diff=float((one - block).abs().max()),
        min_gap=float((best[:, 0] - best[:, 1]).min()),
    )


def one_at_a_time(target: Target, ids: list[int], n_prompt: int) -> torch.Tensor:
    """Logits ``[len(ids) - n_prompt, n_vocab]`` behind every token after the prompt, one pass each."""
    slot = target.slots.open(len(ids))
    try:
        target.forward([Span(slot, ids[:n_prompt], 0)])
        rows = [target.forward([Span(slot, [i], 1)])[0] for i in ids[n_prompt:]]
    finally:
        target.slots.release(slot)
    return torch.cat(rows)


def in_blocks(target: Target, ids: list[int], n_prompt: int, rng: np.random.Generator) -> torch.Tensor:
    """The same logits in blocks of 1 to 17 beside a neighbour, with a wrong draft rolled back in between."""
    slot, neighbour = target.slots.open(len(ids)), target.slots.open(target.facts.context_length)
    try:
        target.forward([Span(slot, ids[: n_prompt // 2], 0), Span(neighbour, ids[:3], 1)])
        target.forward([Span(slot, ids[n_prompt // 2 : n_prompt], 0)])
        draft_wrongly(target, slot, ids, rng)
        rows = []
        while slot.length < len(ids):
            n = int(rng.integers(1, LONGEST_BLOCK + 1))
            block = ids[slot.length : slot.length + n]
            beside = ids[: int(rng.integers(1, 4))]
            rows.append(target.forward([Span(neighbour, beside, 1), Span(slot, block, len(block))])[1])
    finally:
        target.slots.release(slot)
        target.slots.release(neighbour)
    return torch.cat(rows)


def draft_wrongly(target: Target, slot: Slot, ids: list[int], rng: np.random.Generator) -> None:
    """Run a block of other tokens than the text's through a slot and cut it back."""
    n = slot.length
    wrong = rng.integers(0, target.facts.n_vocab, size=min(5, len(ids) - n)).tolist()
    target.forward([Span(slot, wrong, len(wrong))])
    slot.truncate(n)
