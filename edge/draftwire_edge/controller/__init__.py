"""How far to draft and who waits for whom, from what was measured. Pure: no clock, no socket."""

from draftwire_edge.controller.controller import Controller, GammaPolicy, Plan, Round

__all__ = ["Controller", "GammaPolicy", "Plan", "Round"]
