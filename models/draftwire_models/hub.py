"""The model hub: one short question first, then the files, each checked against the hub's own digest.

The question (what is in this repository?) costs one request with a short limit.
huggingface_hub's downloads retry for half a minute before they admit that there
is no network, so they start only after an answer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils.tqdm import tqdm as hub_tqdm

from draftwire_models.errors import DiskFullError, DownloadError
from draftwire_models.progress import Progress
from draftwire_models.space import is_disk_full

Answer = TypeVar("Answer")


class HubUnreachableError(DownloadError):
    """The hub gave no answer; another source may still have the file."""

    def __init__(self, reason: str, *, known: bool) -> None:
        """`known` tells that the same command has said so before."""
        super().__init__(reason)
        self.known = known


@dataclass(frozen=True)
class HubFile:
    """One file of a repository as the hub lists it."""

    path: str
    size: int | None
    sha256: str | None  # None for small files, which the hub keeps in plain git


@dataclass(frozen=True)
class Listing:
    """A repository's files at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]

    def file(self, path: str) -> HubFile:
        """Return one file, or raise DownloadError when the repository has none of that name."""
        for entry in self.files:
            if entry.path == path:
                return entry
        raise DownloadError(f"the hub repository {self.repo} has no file {path}")

    def matching(self, patterns: tuple[str, ...]) -> tuple[HubFile, ...]:
        """Return the top-level files that match a pattern; subfolders hold other formats."""
        top = (entry for entry in self.files if "/" not in entry.path)
        return tuple(entry for entry in top if any(fnmatch(entry.path, p) for p in patterns))


class Hub:
    """The hub as seen by one command: after one silence it is not asked again."""

    def __init__(self, endpoint: str | None = None, timeout_s: float = 3.0) -> None:
        """Ask at `endpoint` (None: the usual one) and wait `timeout_s` for an answer."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._silence: str | None = None

    def listing(self, repo: str, revision: str) -> Listing:
        """Ask once what a repository holds."""
        if self._silence is not None:
            raise HubUnreachableError(self._silence, known=True)
        api = HfApi(endpoint=self._endpoint)
        try:
            info = _within(
                self._timeout_s,
                lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=self._timeout_s),
            )
        # The HTTP library below huggingface_hub, and so its errors, differ from version to version.
        except Exception as error:
            raise self._no_listing(repo, error) from error
        files = tuple(
            HubFile(entry.rfilename, entry.size, entry.lfs.sha256 if entry.lfs else None)
            for entry in info.siblings or ()
        )
        return Listing(repo, info.sha or revision, files)

    def fetch(self, listing: Listing, entry: HubFile, folder: Path, progress: Progress) -> Path:
        """Download one listed file into `folder` and return its path."""
        try:
            path = hf_hub_download(
                listing.repo,
                entry.path,
                revision=listing.commit,
                local_dir=folder,
                endpoint=self._endpoint,
                tqdm_class=_reporting_bar(progress),
            )
        except Exception as error:
            if is_disk_full(error):
                raise DiskFullError(entry.path, folder) from error
            raise DownloadError(
                f"{entry.path} from {listing.repo} broke off: {_first_line(error)}"
            ) from error
        return Path(path)

    def _no_listing(self, repo: str, error: Exception) -> DownloadError:
        if isinstance(error, GatedRepoError):
            return DownloadError(
                f"{repo} is gated: accept its licence on its hub page and log in with: hf auth login"
            )
        if isinstance(error, RepositoryNotFoundError):
            return DownloadError(f"the hub knows no repository {repo}, or it needs a login: hf auth login")
        self._silence = f"model hub not reachable ({_first_line(error)})"
        return HubUnreachableError(self._silence, known=False)


def _within(seconds: float, question: Callable[[], Answer]) -> Answer:
    """Answer a question in time or raise TimeoutError.

    A request's own limit does not cover the name lookup, which can hang for
    half a minute behind a firewall. The thread is a daemon: it never delays exit.
    """
    answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(question())
        except Exception as error:  # noqa: BLE001  (handed to the caller, whatever it is)
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds + 1.0)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _first_line(error: BaseException) -> str:
    """The shortest true description of an error: the first line of its root."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _reporting_bar(progress: Progress) -> Any:
    """A progress-bar class for huggingface_hub that draws nothing and reports to `progress`."""

    class ReportingBar(hub_tqdm):
        """Counts bytes; the hub's second bar, of compressed traffic, is left out."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = "downloading bytes" not in str(kwargs.get("desc", ""))
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                progress.advance(int(n or 0))

    return ReportingBar
