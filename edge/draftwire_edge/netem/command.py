"""``draftwire netem``: a relay until a signal ends it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

from draftwire_edge.netem.address import Address
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.profiles import Profile, Step, constant, find_profile
from draftwire_edge.netem.relay import Relay
from draftwire_edge.netem.timing import precise_event_loop
from draftwire_protocol.errors import UserInputError


@dataclass(frozen=True, slots=True)
class NetemJob:
    """What the command was told."""

    listen: Address
    to: Address
    profile: Profile
    seed: int = 0
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.listen == self.to:
            raise UserInputError("--to", f"{self.to} is --listen itself", "Give the service's address")


def chosen_profile(
    name: str | None,
    *,
    rtt_ms: float | None = None,
    jitter_ms: float | None = None,
    rate_kbit: float | None = None,
    loss: float | None = None,
) -> Profile:
    """A profile, or an undisturbed link, with single figures replaced in all of its steps.

    Raises:
        UserInputError: no such profile, or a figure out of range.
    """
    options = {"rtt_ms": rtt_ms, "jitter_ms": jitter_ms, "rate_kbit": rate_kbit, "loss": loss}
    given = {name: value for name, value in options.items() if value is not None}
    base = constant("custom", "as typed", Conditions()) if name is None else find_profile(name)
    steps = tuple(replace(step, conditions=replace(step.conditions, **given)) for step in base.steps)
    return replace(base, steps=steps)


def run_netem(job: NetemJob) -> None:
    """Relay until SIGINT or SIGTERM.

    Raises:
        UserInputError: it cannot listen there.
    """
    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        runner.run(_relay(job))


async def play(relay: Relay, profile: Profile, on_step: Callable[[float, Step], None] | None = None) -> None:
    """Let a relay go through a profile, for ever if it varies.

    Args:
        relay: whose conditions are replaced; it is frozen and thawed as the steps say.
        profile: the steps.
        on_step: called with the seconds since the start and the step that begins.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    for begin_s, step in profile.timeline():
        # By the clock, so that late steps do not add up.
        await asyncio.sleep(started_s + begin_s - loop.time())
        relay.conditions = step.conditions
        (relay.freeze if step.held else relay.thaw)()
        if on_step is not None:
            on_step(begin_s, step)


async def _relay(job: NetemJob) -> None:
    first = job.profile.steps[0].conditions
    relay = Relay(job.to, first, job.seed, listen=job.listen)
    try:
        await relay.__aenter__()
    except (OSError, UnicodeError) as error:
        fix = "Use another address, or port 0 for a free one"
        raise UserInputError("--listen", f"cannot listen on {job.listen} ({error})", fix) from error
    try:
        # Before the first line, which tells others that they may end it.
        with _ended_by_signal() as ended:
            _say_where(job, relay)
            said = partial(_say_step, job)
            playing = asyncio.create_task(play(relay, job.profile, said))
            await ended.wait()
            playing.cancel()
    finally:
        await relay.__aexit__(None, None, None)
    _say_end(job, relay)


def _say_where(job: NetemJob, relay: Relay) -> None:
    where = {"listen": str(relay.address), "to": str(job.to), "profile": job.profile.name, "seed": job.seed}
    first = job.profile.steps[0]
    text = f"relaying {where['listen']} -> {where['to']}, profile {job.profile.name}: {_text(first)}"
    _say(job, text, where | _figures(first))


def _say_step(job: NetemJob, at_s: float, step: Step) -> None:
    """One line a change; the first line of all has said how it begins."""
    if at_s > 0.0:
        _say(job, f"{at_s:.1f} s: {_text(step)}", {"at_s": at_s} | _figures(step))


def _say_end(job: NetemJob, relay: Relay) -> None:
    up, down = relay.passed_bytes
    text = f"ended after {relay.connections} connections, {up} bytes up, {down} bytes down"
    _say(job, text, {"connections": relay.connections, "bytes_up": up, "bytes_down": down})


def _say(job: NetemJob, text: str, figures: dict[str, object]) -> None:
    sys.stdout.write((json.dumps(figures) if job.as_json else text) + "\n")
    sys.stdout.flush()


def _text(step: Step) -> str:
    return "nothing passes" if step.held else str(step.conditions)


def _figures(step: Step) -> dict[str, object]:
    return asdict(step.conditions) | {"held": step.held}


@contextmanager
def _ended_by_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT or SIGTERM sets."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        yield ended
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
