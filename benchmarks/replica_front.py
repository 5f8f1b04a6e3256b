"""What the front before replicas costs: round trips with and without it, taking turns, in one run.

    python benchmarks/replica_front.py HOST:PORT REPLICA_HOST:PORT

The first is a service started with ``--engine ray``, the second one of its replicas, as the service notes
its address at start. A small model shows the most: its forward pass, which the service reports, is deducted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_protocol.messages import Draft, Finished, Mode, Open, Verdict
from draftwire_protocol.params import SamplingParams

ROUNDS, PROMPT = 400, (60, 61, 62)


async def next_verdict(stream: DecodeStream) -> Verdict | None:
    """The next verdict; None at the end."""
    while not isinstance(message := await stream.receive(), Verdict):
        if isinstance(message, Finished):
            return None
    return message


async def one_round(stream: DecodeStream, length: int) -> tuple[float, int] | None:
    """Ask for one token: milliseconds on the way, and the length after it."""
    started = time.perf_counter()
    await stream.send(Draft(0, length, ()))
    verdict = await next_verdict(stream)
    if verdict is None:
        return None
    way_ms = 1e3 * (time.perf_counter() - started) - verdict.timing.total_us / 1e3
    return way_ms, length + len(verdict.ids)


async def begin(channel: CloudChannel, name: str) -> tuple[DecodeStream, int]:
    """A stream that waits for drafts, and the length of its text."""
    stream = channel.decode()
    await stream.send(Open(name, PROMPT, SamplingParams(), ROUNDS, Mode.LOCKSTEP))
    first = await next_verdict(stream)
    return stream, len(PROMPT) + (len(first.ids) if first else 0)


async def main(front: str, replica: str) -> None:
    """Measure and print."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    asks: dict[str, list[float]] = {"without": [], "with": []}
    async with CloudChannel(replica) as direct, CloudChannel(front) as through:
        channels = {"without": direct, "with": through}
        streams = {name: await begin(channel, name) for name, channel in channels.items()}
        for _ in range(ROUNDS - 2):
            for name, (stream, length) in streams.items():
                if (done := await one_round(stream, length)) is not None:
                    times[name].append(done[0])
                    streams[name] = (stream, done[1])
        for _ in range(ROUNDS):
            for name, channel in channels.items():
                started = time.perf_counter()
                await channel.get_model()
                asks[name].append(1e3 * (time.perf_counter() - started))
        for stream, _ in streams.values():
            stream.cancel()
    for what, figures in (("Decode, a round", times), ("GetModel", asks)):
        for name, values in figures.items():
            print(f"{what}, {name} the front: median {median(values):.3f} ms of {len(values)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
