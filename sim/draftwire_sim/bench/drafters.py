"""Drafters as a benchmark needs them: lent to many sessions, pinned to a core."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from draftwire_edge.drafter import Drafter, Guess, Interruptible, WantMore
from draftwire_edge.proposer import Proposer


class LentDrafter:
    """One drafter for many sessions, each of which has a thread of its own; closing it does nothing.

    Args:
        drafter: stays open.
        core: the CPU that its thread runs on while it drafts; None leaves that to the system.
    """

    def __init__(self, drafter: Drafter, core: int | None) -> None:
        self._drafter = drafter
        self._core = core
        # The session before may still be in its last, useless guess.
        self._lock = threading.Lock()
        self.name = drafter.name
        self.context_length = drafter.context_length

    @property
    def model_seconds(self) -> float:
        """As the lent one's."""
        return self._drafter.model_seconds

    def prefill(self, context: Sequence[int]) -> None:
        """As the lent one's."""
        with self._lock:
            self._pin()
            self._drafter.prefill(context)

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """As the lent one's."""
        with self._lock:
            self._pin()
            return self._drafter.draft(context, proposer, limit, want_more)

    def interrupt(self) -> None:
        """As the lent one."""
        if isinstance(self._drafter, Interruptible):
            self._drafter.interrupt()

    def close(self) -> None:
        """Leave it open."""

    def _pin(self) -> None:
        """Linux pins the calling thread alone; other systems have no such call."""
        if self._core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self._core})
