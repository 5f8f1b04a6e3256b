"""From what a user typed (a pair's name or a path) to a model on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftwire_models.cache import ModelCache
from draftwire_models.errors import ModelMissingError, UnknownPairError, UnreadableModelError
from draftwire_models.gguf_header import read_header
from draftwire_models.pairs import PAIRS, Pair, Role
from draftwire_models.progress import Progress
from draftwire_models.pull import FetchOptions, pull_model

_TARGET = "a GGUF file or a safetensors folder"


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

    Raises:
        UnknownPairError: neither a pair's name nor an existing path.
        ModelMissingError: the pair's model is not in the cache and `download` is not set.
        CorruptModelError, UnreadableModelError: the path holds no sound model.
        DownloadError: no source could deliver it.
    """
    given = _existing_path(pair_or_path)
    if given is None:
        pair = _known(str(pair_or_path), argument)
        return _of_pair(pair, "draft", cache, _Fetch(progress, options) if download else None)
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
    """Return the GGUF file or the safetensors folder of a target model; otherwise like `resolve_draft`."""
    given = _existing_path(pair_or_path)
    if given is None:
        pair = _known(str(pair_or_path), argument)
        return _of_pair(pair, "target", cache, _Fetch(progress, options) if download else None)
    if not given.is_dir():
        read_header(given)
    elif not (given / "config.json").is_file():
        raise UnreadableModelError(given, "the folder has no config.json", _TARGET)
    return given


@dataclass(frozen=True)
class _Fetch:
    """Leave to download, and how."""

    progress: Progress | None
    options: FetchOptions | None


def _known(name: str, argument: str) -> Pair:
    if name not in PAIRS:
        raise UnknownPairError(argument, name, PAIRS, or_path=True)
    return PAIRS[name]


def _of_pair(pair: Pair, role: Role, cache: ModelCache | None, fetch: _Fetch | None) -> Path:
    """Return a pair's model from the cache, fetching it first if allowed."""
    model, cache = pair.part(role), cache or ModelCache.open()
    if fetch is not None:
        return pull_model(model, cache, fetch.progress, fetch.options)
    if not cache.has(model):
        raise ModelMissingError(pair.name, role, cache.path_of(model))
    return cache.path_of(model)


def _existing_path(pair_or_path: str | Path) -> Path | None:
    """Return the path if one was meant: a pair's name wins over a file that happens to be called so."""
    if isinstance(pair_or_path, str) and pair_or_path in PAIRS:
        return None
    path = Path(pair_or_path)
    try:
        path = path.expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:  # a folder on the way is closed to us; an unknown ~user
        raise UnreadableModelError(path, error) from error
