"""The links of a benchmark: what was typed, as profiles that each text goes through from its begin."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from draftwire_edge.netem.command import chosen_profile, play
from draftwire_edge.netem.profiles import Profile, Step
from draftwire_edge.netem.relay import Relay
from draftwire_protocol.errors import UserInputError

DEFAULT_RTTS = "0,15,30,60,100,200,400"
QUICK_RTTS = "0,30,200"


@dataclass(frozen=True, slots=True)
class BenchLink:
    """One link, under the name that figures have it by: R in ms, or a profile's name."""

    name: str
    profile: Profile

    def for_text(self, index: int, count: int) -> Profile:
        """What text ``index`` of ``count`` goes through, in every way it is written.

        A profile that repeats begins elsewhere for each text, so that short texts see all of it.
        """
        cycle_s = sum(step.seconds for step in self.profile.steps)
        return self.profile if math.isinf(cycle_s) else starting_at(self.profile, cycle_s * index / count)


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What was typed about the link; None where nothing was."""

    rtt_ms: str | None = None
    profile: str | None = None
    change: str | None = None
    jitter_ms: float | None = None
    rate_kbit: float | None = None
    loss: float | None = None


def chosen_links(options: LinkOptions, default_rtts: str = DEFAULT_RTTS) -> list[BenchLink]:
    """The links to measure.

    Raises:
        UserInputError: naming the option that makes no sense.
    """
    if options.profile is not None:
        if options.rtt_ms is not None:
            fix = "Give either --profile or --rtt-ms"
            raise UserInputError("--profile", "a profile has a round-trip time of its own", fix)
        if options.change is not None:
            raise UserInputError("--change", "a profile changes by itself or not at all", "Give one --rtt-ms")
        return [_link(name, options, name) for name in options.profile.split(",")]
    rtts_ms = _numbers(default_rtts if options.rtt_ms is None else options.rtt_ms)
    changes = changes_of(options.change)
    if changes and any(rtt_ms != changes[-1][1] for rtt_ms in rtts_ms):
        fix = "Let the last change go back to it, and give one --rtt-ms: --rtt-ms 10 --change 1:300,3:10"
        raise UserInputError("--change", "the link does not end as it began", fix)
    links = [_link(f"{rtt_ms:g}", options, None, rtt_ms) for rtt_ms in rtts_ms]
    return [replace(link, profile=_changed(link.profile, changes)) for link in links]


def changes_of(text: str | None) -> list[tuple[float, float]]:
    """Seconds from a text's begin and R in ms of each change, in order of time.

    Raises:
        UserInputError: it is no such list.
    """
    try:
        pairs = [one.split(":") for one in text.split(",")] if text else []
        changes = sorted((float(at_s), float(rtt_ms)) for at_s, rtt_ms in pairs)
    except ValueError as error:
        problem = f"{text!r} is no list of SECONDS:MS"
        raise UserInputError("--change", problem, "Write e.g. 1:300,3:10") from error
    if any(not (at_s >= 0 and rtt_ms >= 0) for at_s, rtt_ms in changes):
        raise UserInputError("--change", "a number below 0", "Write e.g. 1:300,3:10")
    return changes


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(one) for one in text.split(",")]
    except ValueError as error:
        raise UserInputError("--rtt-ms", f"{text!r} is no list of numbers", "Write e.g. 0,30,100") from error
    if any(not one >= 0 for one in numbers):
        raise UserInputError("--rtt-ms", "a time below 0", "Write e.g. 0,30,100")
    return numbers


def _link(name: str, options: LinkOptions, profile: str | None, rtt_ms: float | None = None) -> BenchLink:
    chosen = chosen_profile(
        profile,
        rtt_ms=rtt_ms,
        jitter_ms=options.jitter_ms,
        rate_kbit=options.rate_kbit,
        loss=options.loss,
    )
    return BenchLink(name, chosen)


def _changed(profile: Profile, changes: Sequence[tuple[float, float]]) -> Profile:
    """A constant link whose R becomes another at each stated moment."""
    before = profile.steps[0].conditions
    begins = [(0.0, before.rtt_ms), *changes, (math.inf, 0.0)]
    steps = [
        Step(until_s - at_s, replace(before, rtt_ms=rtt_ms))
        for (at_s, rtt_ms), (until_s, _) in pairwise(begins)
    ]
    return replace(profile, steps=tuple(steps))


def starting_at(profile: Profile, offset_s: float) -> Profile:
    """A profile that repeats, from ``offset_s`` seconds after its begin on."""
    begin_s, steps = 0.0, profile.steps
    for index, step in enumerate(steps):
        past_s = offset_s - begin_s
        if past_s < step.seconds:
            rest = replace(step, seconds=step.seconds - past_s)
            again = (*steps[:index], replace(step, seconds=past_s)) if past_s else steps[:index]
            return replace(profile, steps=(rest, *steps[index + 1 :], *again))
        begin_s += step.seconds
    return profile


@asynccontextmanager
async def playing(relay: Relay, profile: Profile) -> AsyncIterator[None]:
    """Let the link go through a profile from its begin; as at its begin again afterwards."""
    first = profile.steps[0].conditions
    relay.conditions = first
    player = asyncio.create_task(play(relay, profile))
    try:
        yield
    finally:
        player.cancel()
        await asyncio.gather(player, return_exceptions=True)
        relay.conditions = first
        relay.thaw()
