"""Who comes first when not all fit: deficit round-robin. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class DeficitRoundRobin(Generic[K]):
    """Turns of equal cost for whoever wants one.

    On each visit a member's credit grows by a quantum; it is served while its credit covers the cost, so
    over time all that always want something get the same amount, whatever the size of their pieces
    (Shreedhar and Varghese 1996, "Efficient fair queueing using deficit round-robin").

    Args:
        quantum: credit of a visit, in the unit of cost.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._credit: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._credit)

    def add(self, member: K) -> None:
        """A new member stands at the back; a known one stays where it is."""
        self._credit.setdefault(member, 0)

    def remove(self, member: K) -> None:
        """Forget a member; unknown ones are ignored."""
        self._credit.pop(member, None)

    @property
    def members(self) -> list[K]:
        """All members, whose turn it is first."""
        return list(self._credit)

    def credit(self, member: K) -> int:
        """What the member may spend now."""
        return self._credit[member]

    def visit(self, member: K) -> None:
        """Begin a member's turn: its credit grows."""
        self._credit[member] += self._quantum

    def charge(self, member: K, cost: int) -> None:
        """Take the cost of what was served."""
        self._credit[member] -= cost

    def rest(self, member: K) -> None:
        """The member wants nothing now: what it did not use is lost, or silence would buy a burst."""
        self._credit[member] = min(self._credit[member], 0)

    def to_back(self, member: K) -> None:
        """The member's turn is over."""
        self._credit[member] = self._credit.pop(member)
