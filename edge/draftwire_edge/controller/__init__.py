"""How far to draft and who waits for whom, from what was measured. Pure: no clock, no socket."""

from draftwire_edge.controller.controller import Controller, Seen
from draftwire_edge.controller.explanation import Explanation
from draftwire_edge.controller.policy import GammaPolicy, Plan, Prefer

__all__ = ["Controller", "Explanation", "GammaPolicy", "Plan", "Prefer", "Seen"]
