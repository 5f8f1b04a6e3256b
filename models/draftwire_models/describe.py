"""What there is to say about a pair, as plain data: the source of both JSON and text."""

from __future__ import annotations

from typing import Any

from draftwire_models.cache import ModelCache
from draftwire_models.pairs import DEFAULT_PAIR, HubFolder, ModelFile, Pair

_HUB_CHECK = "no published sha256 is known here; checked against the digest the hub lists"


def describe_pair(pair: Pair, cache: ModelCache) -> dict[str, Any]:
    """Describe a pair and both its models."""
    return {
        "name": pair.name,
        "default": pair.name == DEFAULT_PAIR,
        "description": pair.description,
        "licence": pair.licence,
        "draft": describe_model(pair.draft, cache),
        "target": describe_model(pair.target, cache),
    }


def describe_model(model: ModelFile | HubFolder, cache: ModelCache) -> dict[str, Any]:
    """Describe one model and whether it is on this machine."""
    common = {"name": model.name, "path": str(cache.path_of(model)), "present": cache.has(model)}
    if isinstance(model, HubFolder):
        return common | {
            "size_bytes": None,
            "sha256": None,
            "check": _HUB_CHECK,
            "sources": [f"hub repository {model.repo} (whole folder)"],
        }
    return common | {
        "size_bytes": model.size,
        "sha256": model.sha256,
        "check": f"sha256 {model.sha256}" if model.sha256 else _HUB_CHECK,
        "sources": [source.describe() for source in model.sources],
    }
