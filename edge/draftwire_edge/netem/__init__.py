"""A TCP link with the delay, rate and losses one asks for, to try draftwire on without going there."""

from draftwire_edge.netem.address import Address
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.link import Link
from draftwire_edge.netem.profiles import PROFILES, Profile, Step, find_profile
from draftwire_edge.netem.relay import Relay
from draftwire_edge.netem.timing import precise_event_loop

__all__ = [
    "PROFILES",
    "Address",
    "Conditions",
    "Link",
    "Profile",
    "Relay",
    "Step",
    "find_profile",
    "precise_event_loop",
]
