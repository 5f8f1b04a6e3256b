"""What is compared: each way to write a text, with a controller of its own."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_edge.controller import GammaPolicy, Prefer
from draftwire_protocol.messages import Mode

#: Fixed γ of lockstep, the best of which is chosen in hindsight.
FIXED_GAMMAS = (1, 2, 4, 8, 12, 16)
CLOUD_ALONE = "cloud"
#: The draft model by itself, without a cloud: another text, and a measure of c_d.
DRAFT_ALONE = "draft"
#: The drafter stands next to the target, so drafts pay no round trip; the user still pays one.
COLOCATED = "colocated"
#: Duplex without the stop rule, as the event model computes it.
WINDOW_GAMMA = 16
WINDOW = f"duplex-{WINDOW_GAMMA}"
AUTO, LOCKSTEP_AUTO, DUPLEX, PIPELINED = "auto", "lockstep-auto", "duplex", "pipelined"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to write a text."""

    name: str
    policy: GammaPolicy
    #: Whether it goes over the emulated link.
    remote: bool = True


def fixed(gamma: int) -> str:
    """Name of lockstep with this γ."""
    return f"lockstep-{gamma}"


def all_arms(gammas: tuple[int, ...] = FIXED_GAMMAS) -> list[Arm]:
    """Every arm."""
    return [
        Arm(CLOUD_ALONE, GammaPolicy(mode=Mode.CLOUD)),
        Arm(DRAFT_ALONE, GammaPolicy(), remote=False),
        Arm(COLOCATED, GammaPolicy(mode=Mode.LOCKSTEP), remote=False),
        *(Arm(fixed(gamma), GammaPolicy(gamma, Mode.LOCKSTEP)) for gamma in gammas),
        Arm(LOCKSTEP_AUTO, GammaPolicy(mode=Mode.LOCKSTEP)),
        Arm(PIPELINED, GammaPolicy(mode=Mode.PIPELINED)),
        Arm(DUPLEX, GammaPolicy(mode=Mode.DUPLEX)),
        Arm(WINDOW, GammaPolicy(WINDOW_GAMMA, Mode.DUPLEX)),
        Arm(AUTO, GammaPolicy()),
        Arm("auto-balanced", GammaPolicy(prefer=Prefer.BALANCED)),
        Arm("auto-cost", GammaPolicy(prefer=Prefer.COST)),
    ]
