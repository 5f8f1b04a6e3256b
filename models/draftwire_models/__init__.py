"""Model pairs: a table of names, a cache folder, and how a file gets from its source into it.

Used by the edge and by the cloud, which never import each other. Needs no torch
and no llama.cpp.
"""

from draftwire_models.cache import ModelCache, default_cache_dir
from draftwire_models.errors import (
    CacheFolderError,
    ConversionError,
    CorruptModelError,
    DiskFullError,
    DownloadError,
    HashMismatchError,
    ModelError,
    ModelMissingError,
    UnknownPairError,
    UnreadableModelError,
)
from draftwire_models.pairs import DEFAULT_PAIR, PAIRS, HubFolder, ModelFile, Pair, get_pair
from draftwire_models.progress import Progress, SilentProgress, console_progress
from draftwire_models.pull import FetchOptions, pull_model, pull_pair
from draftwire_models.resolve import resolve_draft, resolve_target

__all__ = [
    "DEFAULT_PAIR",
    "PAIRS",
    "CacheFolderError",
    "ConversionError",
    "CorruptModelError",
    "DiskFullError",
    "DownloadError",
    "FetchOptions",
    "HashMismatchError",
    "HubFolder",
    "ModelCache",
    "ModelError",
    "ModelFile",
    "ModelMissingError",
    "Pair",
    "Progress",
    "SilentProgress",
    "UnknownPairError",
    "UnreadableModelError",
    "console_progress",
    "default_cache_dir",
    "get_pair",
    "pull_model",
    "pull_pair",
    "resolve_draft",
    "resolve_target",
]
