"""Telling a person how far a download or conversion is.

Work reports to a ``Progress``; who shows it is decided once, in the command
line: a bar with bytes where stderr is a terminal, a line now and then where it
is not, nothing in tests.
"""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichBar


class Progress(Protocol):
    """Where work reports to. `start` opens a bar, `finish` closes it, good or not."""

    def start(self, label: str, total: int | None) -> None:
        """Begin one piece of work of `total` bytes, None when not known."""

    def advance(self, count: int) -> None:
        """Add `count` bytes; a negative count takes back what has to be done again."""

    def finish(self) -> None:
        """End the current piece of work. Harmless when there is none."""

    def note(self, line: str) -> None:
        """Say one line."""


class SilentProgress:
    """Shows nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Ignore the start of a piece of work."""

    def advance(self, count: int) -> None:
        """Ignore the bytes."""

    def finish(self) -> None:
        """Ignore the end."""

    def note(self, line: str) -> None:
        """Ignore the line."""


class LineProgress:
    """Prints a line at most every `every_s` seconds; for logs and pipes."""

    def __init__(self, console: Console, every_s: float = 5.0) -> None:
        """Print to `console`."""
        self._console = console
        self._every_s = every_s
        self._label = ""
        self._total: int | None = None
        self._done = 0
        self._next_at = 0.0

    def start(self, label: str, total: int | None) -> None:
        """Print what begins."""
        self._label, self._total, self._done = label, total, 0
        self._next_at = time.monotonic() + self._every_s
        self.note(f"{label} ({_megabytes(total)})" if total else label)

    def advance(self, count: int) -> None:
        """Print a line when the last one is old enough."""
        self._done += count
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + self._every_s
            share = f" ({self._done / self._total:.0%})" if self._total else ""
            self.note(f"{self._label}: {_megabytes(self._done)}{share}")

    def finish(self) -> None:
        """End the piece of work."""
        self._label = ""

    def note(self, line: str) -> None:
        """Print one line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class RichProgress:
    """A bar with bytes, speed and time left."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._console = console
        self._bar: RichBar | None = None
        self._task: TaskID | None = None

    def start(self, label: str, total: int | None) -> None:
        """Open a bar."""
        self.finish()
        self._bar = RichBar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(label, total=total)
        self._bar.start()

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)

    def finish(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def note(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def console_progress(console: Console | None = None) -> Progress:
    """Return a bar for a terminal and plain lines for anything else."""
    console = console or Console(stderr=True)
    return RichProgress(console) if console.is_terminal else LineProgress(console)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
