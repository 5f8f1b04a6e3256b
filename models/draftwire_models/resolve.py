"""From what a user typed (a pair's name or a path) to a model on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftwire_models.cache import ModelCache
from draftwire_models.errors import CorruptModelError, ModelMissingError, UnknownPairError
from draftwire_models.gguf_header import read_header
from draftwire_models.pairs import PAIRS, Role
from draftwire_models.progress import Progress
from draftwire_models.pull import FetchOptions, pull_model


def resolve_draft(
    pair_or_path: str | Path,
    cache: ModelCache | None = None,
    *,
    argument: str = "--pair",
    download: bool = False,
    progress: Progress | None = None,
    options: FetchOptions | None = None,
) -> Path:
    """Return the GGUF file of a draft model.

    `argument` is the name under which a wrong value is reported. Nothing is
    downloaded unless `download` is set.
    """
    given = _existing_path(pair_or_path)
    if given is None:
        _require_known(str(pair_or_path), argument)
        fetch = _Fetch(progress, options) if download else None
        return _of_pair(str(pair_or_path), "draft", cache or ModelCache.open(), fetch)
    if given.is_dir():
        raise CorruptModelError(given, "it is a folder; a draft model is one GGUF file")
    read_header(given)
    return given


def resolve_target(
    pair_or_path: str | Path,
    cache: ModelCache | None = None,
    *,
    argument: str = "--model",
    download: bool = False,
    progress: Progress | None = None,
    options: FetchOptions | None = None,
) -> Path:
    """Return the GGUF file or the safetensors folder of a target model.

    `argument` is the name under which a wrong value is reported. Nothing is
    downloaded unless `download` is set.
    """
    given = _existing_path(pair_or_path)
    if given is None:
        _require_known(str(pair_or_path), argument)
        fetch = _Fetch(progress, options) if download else None
        return _of_pair(str(pair_or_path), "target", cache or ModelCache.open(), fetch)
    if not given.is_dir():
        read_header(given)
    elif not (given / "config.json").is_file():
        raise CorruptModelError(given, "the folder has no config.json")
    return given


@dataclass(frozen=True)
class _Fetch:
    """Leave to download, and how."""

    progress: Progress | None
    options: FetchOptions | None


def _require_known(name: str, argument: str) -> None:
    if name not in PAIRS:
        raise UnknownPairError(argument, name, PAIRS, or_path=True)


def _of_pair(name: str, role: Role, cache: ModelCache, fetch: _Fetch | None) -> Path:
    """Return a pair's model from the cache, fetching it first if allowed."""
    model = PAIRS[name].part(role)
    if fetch is not None:
        return pull_model(model, cache, fetch.progress, fetch.options)
    if not cache.has(model):
        raise ModelMissingError(name, role, cache.path_of(model))
    return cache.path_of(model)


def _existing_path(pair_or_path: str | Path) -> Path | None:
    """Return the path if one was meant: a pair's name wins over a file that happens to be called so."""
    if isinstance(pair_or_path, str) and pair_or_path in PAIRS:
        return None
    path = Path(pair_or_path).expanduser()
    return path if path.exists() else None
