"""Waiting between attempts to reconnect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How to go on after the connection broke; all in seconds."""

    first_wait_s: float = 0.25
    max_wait_s: float = 4.0
    #: Give up after this long without a committed token; a server that restarts loads its model first.
    deadline_s: float = 180.0


class Backoff:
    """Exponential waits within a deadline.

    Args:
        policy: how long.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """There was progress: start again from short waits."""
        self._wait_s = self._policy.first_wait_s
        self._failing_since: float | None = None

    def next_wait_s(self, now: float) -> float | None:
        """How long to wait before the next attempt; None when it is time to give up.

        Args:
            now: monotonic seconds.
        """
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._policy.deadline_s:
            return None
        wait_s = self._wait_s
        self._wait_s = min(2 * self._wait_s, self._policy.max_wait_s)
        return wait_s
