"""The event model's figure for a text that was measured: same guesses, same costs."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_edge.controller import Controller
from draftwire_edge.drafter import Drafter
from draftwire_edge.proposer import Proposer
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.recordings import Recording
from draftwire_sim.event_model import Costs, Policy, Turns, simulate


def matches_of(drafter: Drafter, recording: Recording, tokens: int) -> list[bool]:
    """Of each position of a text, whether the drafter's greedy guess there is the target's token."""
    proposer, matches = Proposer(SamplingParams()), []
    for at, token in enumerate(recording.output_ids[:tokens]):
        context = [*recording.prompt_ids, *recording.output_ids[:at]]
        guesses = drafter.draft(context, proposer, 1, lambda _: False)
        matches.append(bool(guesses) and guesses[0].token == token)
    return matches


def modelled_ms(
    controller: Controller, turns: Turns, gamma: int, matches: Sequence[bool], catch_up: float
) -> float:
    """Time per token of the event model with what the controller measured.

    Args:
        controller: after the texts were written.
        turns: pipelined or duplex.
        gamma: most tokens drafted and not verified.
        matches: of the text.
        catch_up: time to read a token that was not drafted, as a part of c_d.
    """
    a_ms = controller.verify_ms(0)
    costs = Costs(controller.draft_ms, a_ms, controller.verify_ms(1) - a_ms, controller.rtt_ms, catch_up)
    return simulate(Policy(turns, gamma), costs, matches).ms_per_token
