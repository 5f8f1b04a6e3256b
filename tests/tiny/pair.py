"""Write a target and its drafters into one folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tiny import vocabulary as tiny_vocabulary
from tiny.config import TinyConfig
from tiny.gguf_file import write_gguf
from tiny.hf_folder import write_hf_folder
from tiny.weights import Weights, add_noise, build_weights

_NAMES = {0.0: "perfect", 0.05: "noisy", 0.2: "poor"}
USELESS = "useless"
_NOISE_SEED, _USELESS_SEED = 1_000_003, 2_000_003


@dataclass(frozen=True)
class TinyPair:
    """Where a target and its drafters lie."""

    config: TinyConfig
    target_folder: Path
    drafters: dict[str, Path]
    """Name -> GGUF file. "perfect" equals the target, "noisy" and "poor" are accepted less and less, and
    "useless" is another random model; other noises are named `noise_<eps>`."""


def make_tiny_pair(
    folder: Path, config: TinyConfig | None = None, noise: Sequence[float] = (0.0, 0.05, 0.2)
) -> TinyPair:
    """Write `target/` and one GGUF file per noise, plus the useless drafter, under `folder`."""
    config = config or TinyConfig()
    target_folder = folder / "target"
    write_hf_folder(target_folder, config, build_weights(config, config.target_rows))
    drafters = {drafter_name(eps): _write_noisy(folder, config, eps) for eps in noise}
    drafters[USELESS] = _write_useless(folder, config)
    return TinyPair(config, target_folder, drafters)


def drafter_name(eps: float) -> str:
    """Name the drafter of one noise level."""
    return _NAMES.get(eps, f"noise_{eps:g}")


def _write_noisy(folder: Path, config: TinyConfig, eps: float) -> Path:
    """Write the drafter that is the target plus noise."""
    weights = add_noise(build_weights(config, config.drafter_rows), eps, config.seed + _NOISE_SEED)
    return _write(folder, config, drafter_name(eps), weights)


def _write_useless(folder: Path, config: TinyConfig) -> Path:
    """Write a drafter drawn from another seed, which knows nothing of the target."""
    stranger = replace(config, seed=config.seed + _USELESS_SEED)
    return _write(folder, config, USELESS, build_weights(stranger, config.drafter_rows))


def write_foreign(folder: Path, config: TinyConfig, eps: float = 0.0) -> Path:
    """Write the target plus noise with another vocabulary: ids in another order, three merges missing."""
    missing = {tiny_vocabulary.ordinary_tokens().index(merged) for merged in ("Ġthe", "ĊĊ", "Ã©")}
    rng = np.random.default_rng(config.seed)
    order = [token for token in rng.permutation(config.n_tokens).tolist() if token not in missing]
    weights = add_noise(build_weights(config, config.drafter_rows), eps, config.seed + _NOISE_SEED)
    path = folder / f"foreign_{eps:g}.gguf"
    write_gguf(path, config, weights, "draftwire-tiny-foreign", order)
    return path


def _write(folder: Path, config: TinyConfig, name: str, weights: Weights) -> Path:
    """Write one drafter and return its path."""
    path = folder / f"{name}.gguf"
    write_gguf(path, config, weights, name=f"draftwire-tiny-{name}")
    return path
