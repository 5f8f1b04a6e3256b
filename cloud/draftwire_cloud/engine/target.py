"""The target model behind one packed forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from transformers import AutoModelForCausalLM

from draftwire_cloud.engine.agreement import (
    blocked_row_counts,
    half_row_counts,
    plain_row_counts,
    query_multiple,
)
from draftwire_cloud.engine.architecture import require_supported, uses_sliding_window
from draftwire_cloud.engine.arena import Arena
from draftwire_cloud.engine.attention import PACKED_ATTENTION
from draftwire_cloud.engine.cache import LayoutCache, PackedCache
from draftwire_cloud.engine.errors import ContextOverflowError, UnsupportedModelError
from draftwire_cloud.engine.facts import ModelFacts, context_length, eos_ids, heads
from draftwire_cloud.engine.layout import KvLayout
from draftwire_cloud.engine.packing import Plan, Span, make_plan
from draftwire_cloud.engine.precision import DtypeName, pick_device, pick_dtype
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.sharding import agreed, num_ranks, shard_arguments
from draftwire_cloud.engine.slots import SlotStore
from draftwire_cloud.engine.team import Team
from draftwire_cloud.engine.tiles import tile_layers
from draftwire_cloud.engine.weights import prepare

WeightForm = Literal["auto", "plain"]

DEFAULT_KV_BYTES = 2 << 30


class Target:
    """A causal language model that verifies many sessions at once. Used by one thread at a time.

    Build one with `load` or `wrap`.

    Attributes:
        facts: fixed properties of the model.
        slots: where sessions open and release their keys and values.
        policy: shapes the kernels see.
        model: the transformers model.
    """

    def __init__(self, model: Any, facts: ModelFacts, slots: SlotStore, policy: ShapePolicy) -> None:
        self.model = model
        self.facts = facts
        self.slots = slots
        self.policy = policy
        self._device = slots.layout.device

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: DtypeName = "auto",
        threads: int | None = None,
        fixed_shapes: bool = True,
        device: str = "auto",
        weights: WeightForm = "auto",
        kv_bytes: int = DEFAULT_KV_BYTES,
        ranks: int = 1,
    ) -> Self:
        """Load a model folder (``config.json`` and safetensors); nothing is downloaded.

        Args:
            folder: the model folder.
            dtype: arithmetic; ``auto`` is bf16 where the hardware computes in it, else float32.
            threads: CPU threads, for the whole process; ``None`` leaves torch's own number.
            fixed_shapes: pad shapes so that results do not depend on what shares a pass.
            device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
            weights: ``auto`` prepares linear weights where that verifies faster, ``plain`` never does.
            kv_bytes: most bytes all sessions' keys and values together may take; on each rank, if split.
            ranks: processes the model is split over; all of them must have joined one process group and
                call this with the same arguments.

        Raises:
            UnsupportedModelError: when the packed path cannot serve this kind of model.
            OSError: when the folder holds no model.
        """
        where = pick_device(device)
        arithmetic = pick_dtype(dtype, where)
        # Split layers add their parts up in hooks that a prepared layer would not have.
        plain = weights != "auto" or ranks > 1
        prepared = not plain and where.type == "cpu" and arithmetic == torch.float32
        # Prepared layers are made from the stored type one by one: a 16-bit model never exists in float32.
        stored = "auto" if prepared else arithmetic
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=stored, local_files_only=True, **shard_arguments(ranks)
        )
        return cls.wrap(
            model.to(where) if ranks == 1 else model,
            dtype=arithmetic,
            threads=threads,
            fixed_shapes=fixed_shapes,
            prepared=prepared,
            kv_bytes=kv_bytes,
        )

    @classmethod
    def wrap(
        cls,
        model: Any,
        *,
        dtype: torch.dtype,
        threads: int | None = None,
        fixed_shapes: bool = True,
        prepared: bool = False,
        kv_bytes: int = DEFAULT_KV_BYTES,
    ) -> Self:
        """Take over a transformers model; it is changed in place. Arguments as for `load`.

        Raises:
            UnsupportedModelError: when the packed path cannot serve this kind of model.
        """
        require_supported(model)
        if threads is not None:
            torch.set_num_threads(threads)
        model.eval().requires_grad_(False)
        model.set_attn_implementation(PACKED_ATTENTION)
        team = Team(torch.get_num_threads())
        forms = prepare(model, team) if prepared else {}
        if not prepared:
            model.to(dtype)
        ranks = num_ranks(model)
        if fixed_shapes and dtype != torch.float32 and model.device.type == "cpu" and ranks == 1:
            forms = tile_layers(model)
        if fixed_shapes and dtype == torch.float32 and model._can_set_experts_implementation():  # noqa: SLF001  # transformers has no public question
            # The grouped product of float32 experts adds in an order that depends on all routed rows.
            model.set_experts_implementation("batched_mm")
        policy = choose_policy(model, dtype, forms) if fixed_shapes else ShapePolicy.off()
        if ranks > 1:
            policy = agreed(policy)
        layout, n_vocab = observe(model, policy)
        facts = ModelFacts(
            architecture=type(model).__name__,
            n_vocab=n_vocab,
            context_length=context_length(model.config),
            eos_ids=eos_ids(model),
            dtype=str(dtype).removeprefix("torch."),
            weights=describe(forms, ranks),
            kv_bytes_per_token=layout.bytes_per_token,
            device=str(layout.device),
        )
        return cls(model, facts, SlotStore(layout, kv_bytes), policy)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> list[torch.Tensor]:
        """Run the new tokens of all spans through the model, once.

        On success every slot holds its span's tokens; on any error every slot is as it was.

        Args:
            spans: each on a slot of its own.

        Returns:
            For each span ``[num_logits, n_vocab]`` float32: row i predicts the token behind the span's
            token ``len(ids) - num_logits + i``.

        Raises:
            ValueError: for ids outside the vocabulary, a closed slot or two spans on one slot.
            ContextOverflowError: when a session would exceed its slot or the context.
            OutOfSlotsError: when keys and values do not fit the budget.
        """
        if not spans:
            return []
        self._check(spans)
        self.slots.reserve([(span.slot, span.slot.length + len(span.ids)) for span in spans])
        plan = make_plan(spans, self.policy, self.slots.arena, self._device)
        logits = self._pass(spans, plan)
        for span in spans:
            span.slot.ids.extend(span.ids)
        return [logits[part] for part in plan.logit_ranges]

    def _pass(self, spans: Sequence[Span], plan: Plan) -> torch.Tensor:  # noqa: ARG002  # for a split target
        """Run a plan; nothing but the model itself can fail any more."""
        return run(self.model, plan, PackedCache(plan))

    def _check(self, spans: Sequence[Span]) -> None:
        """Refuse spans that would fail or go wrong inside the model."""
        limit = self.facts.context_length
        for span in spans:
            if min(span.ids) < 0 or max(span.ids) >= self.facts.n_vocab:
                raise ValueError(f"token ids must lie in [0, {self.facts.n_vocab})")
            after = span.slot.length + len(span.ids)
            if after > limit:
                raise ContextOverflowError(f"{after} tokens do not fit a context of {limit}")


def describe(forms: dict[str, int], ranks: int) -> str:
    """How weights are kept: forms of linear layers and how many have each, and over how many ranks."""
    kept = ", ".join(f"{form} x {n}" for form, n in forms.items() if n) or "plain"
    return kept if ranks == 1 else f"{kept}, split over {ranks} ranks"


def run(model: Any, plan: Plan, cache: PackedCache) -> torch.Tensor:
    """One forward pass over a plan.

    Returns:
        ``[K, n_vocab]`` float32 for the plan's ``logit_rows``; ``[0, 0]`` when it wants none, and then the
        output layer is not computed at all.
    """
    inputs = {"input_ids": plan.input_ids, "position_ids": plan.position_ids, "use_cache": False}
    if plan.logit_rows is None:
        model.base_model(**inputs, cache=cache, packed=plan)
        return torch.empty(0, 0)
    out = model(**inputs, cache=cache, packed=plan, logits_to_keep=plan.logit_rows)
    logits: torch.Tensor = out.logits[0]
    return logits.float()


def choose_policy(model: Any, dtype: torch.dtype, forms: dict[str, int]) -> ShapePolicy:
    """The padding under which the kernels in use here agree, see `ShapePolicy`.

    Args:
        model: the model, its layers prepared already.
        dtype: arithmetic type.
        forms: as `prepare` returned it; empty when nothing was prepared.
    """
    if next(model.parameters()).device.type != "cpu":
        return ShapePolicy.for_gpu()
    agreeing = []
    if forms.get("half"):
        agreeing.append(half_row_counts())
    if forms.get("blocked"):
        agreeing.append(blocked_row_counts(model))
    if has_plain_products(model):
        agreeing.append(plain_row_counts(dtype))
    last = min((counts[-1] for counts in agreeing), default=0)
    common = (n for n in range(1, last + 1) if all(n in counts for counts in agreeing))
    return ShapePolicy(query_multiple=query_multiple(dtype, *heads(model.config)), row_counts=tuple(common))


def has_plain_products(model: torch.nn.Module) -> bool:
    """Whether torch itself still multiplies by some weight: any parameter but vectors and embeddings."""
    layers = (m for m in model.modules() if not isinstance(m, torch.nn.Embedding))
    return any(p.ndim > 1 for m in layers for p in m.parameters(recurse=False))


@torch.inference_mode()
def observe(model: Any, policy: ShapePolicy) -> tuple[KvLayout, int]:
    """The layout of a model's keys and values and the width of its logits, from a pass of padding only.

    Raises:
        UnsupportedModelError: when the model cannot run such a pass.
    """
    nowhere = Arena(KvLayout({}, torch.float32, model.device), 0)
    plan = make_plan([], policy, nowhere, model.device)
    nothing = torch.zeros(1, policy.rows(1), dtype=torch.long, device=model.device)
    plan.input_ids, plan.position_ids = nothing, nothing.clone()
    plan.logit_rows = nothing[0]
    cache = LayoutCache(plan)
    try:
        logits = run(model, plan, cache)
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot run in a packed row: {type(error).__name__}: {error}"
        ) from error
    if uses_sliding_window(model.config) and not plan.windows:
        # Windows are often too long to probe, and the first wrong token would come thousands in.
        raise UnsupportedModelError(f"{type(model).__name__} has a sliding window, but does not pass it on")
    return KvLayout.observed(cache.seen), logits.shape[1]
