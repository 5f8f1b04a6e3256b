"""From ``--model`` to a target that is ready to serve: resolve, convert once, load, check, describe."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from draftwire_cloud.engine.probe import ExactnessReport, check_architecture, exactness_self_test
from draftwire_cloud.engine.target import Target
from draftwire_cloud.engine.vocabulary import special_ids, token_pieces
from draftwire_cloud.identity import model_id
from draftwire_cloud.session import Vocabulary
from draftwire_protocol.fingerprint import piece_hashes, template_hash
from draftwire_protocol.messages import ModelCard

DtypeName = Literal["auto", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """How to load a target."""

    folder: Path
    #: Name shown to edges.
    name: str
    dtype: DtypeName = "auto"
    #: Torch threads; None leaves torch's default.
    threads: int | None = None
    fixed_shapes: bool = True
    #: Most bytes of keys and values.
    kv_bytes: int = 2 << 30
    #: Positions the exactness self-test compares at start.
    self_test_positions: int = 16
    #: Processes the model is split over.
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target that passed its checks."""

    target: Target
    vocabulary: Vocabulary
    card: ModelCard
    exactness: ExactnessReport
    #: Makes the tokenizers library's JSON of its tokenizer, compressed by zlib; empty where there is none.
    pack_tokenizer: Callable[[], bytes] = bytes


def load_target(config: TargetConfig, say: Callable[[str], None]) -> LoadedTarget:
    """Load and check a target; blocking, seconds to a minute.

    Args:
        config: what to load.
        say: told what happens, a line at a time.

    Raises:
        UnsupportedModelError: the packed engine cannot serve this architecture.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  # seconds to import; --help must not wait for it

    target, exactness = load_checked(config, say)
    tokenizer = AutoTokenizer.from_pretrained(config.folder)
    pieces, facts = token_pieces(tokenizer), target.facts
    vocabulary = Vocabulary(pieces, frozenset(special_ids(tokenizer)), frozenset(facts.eos_ids))
    card = ModelCard(
        name=config.name,
        architecture=facts.architecture,
        n_vocab=facts.n_vocab,
        n_tokens=len(pieces),
        eos_ids=tuple(sorted(facts.eos_ids)),
        bos_id=tokenizer.bos_token_id,
        eos_id=tokenizer.eos_token_id,
        special_ids=tuple(sorted(vocabulary.special_ids)),
        piece_hashes=piece_hashes(pieces),
        template_hash=template_hash(tokenizer.chat_template),
        context_length=facts.context_length,
        dtype=facts.dtype,
        exact_shapes=exactness.is_exact,
        model_id=model_id(config.folder, facts, fixed_shapes=config.fixed_shapes),
        chat_template=tokenizer.chat_template,
    )
    return LoadedTarget(target, vocabulary, card, exactness, partial(_packed, tokenizer))


def load_checked(config: TargetConfig, say: Callable[[str], None]) -> tuple[Target, ExactnessReport]:
    """A target and what its self-test found; every rank of a split target runs the same passes here.

    Raises:
        UnsupportedModelError: the packed engine cannot serve this architecture.
    """
    say(f"loading {config.name}")
    target = Target.load(
        config.folder,
        dtype=config.dtype,
        threads=config.threads,
        fixed_shapes=config.fixed_shapes,
        kv_bytes=config.kv_bytes,
        ranks=config.ranks,
    )
    say("checking that the packed engine serves this architecture")
    rng = np.random.default_rng(0)
    check_architecture(target, rng)
    return target, exactness_self_test(target, config.self_test_positions, rng)


def _packed(tokenizer: Any) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return b"" if backend is None else zlib.compress(backend.to_str().encode())
