"""Over links that delay, jitter, lose, change and break, every mode writes what the cloud alone writes."""

import asyncio
import random

import pytest

from draftwire_cloud.loading import LoadedTarget
from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import GammaPolicy, Prefer
from draftwire_edge.drafters.llama import LlamaCppDrafter
from draftwire_edge.drafters.lookup_first import LookupFirstDrafter
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.netem.conditions import Conditions
from draftwire_edge.netem.relay import Relay
from draftwire_protocol.messages import Mode
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.drafters import LentDrafter
from loop.harness import Edge, connected, serving

POLICIES = {
    "lockstep": GammaPolicy(None, Mode.LOCKSTEP),
    "pipelined": GammaPolicy(None, Mode.PIPELINED),
    "duplex": GammaPolicy(None, Mode.DUPLEX),
    "auto": GammaPolicy(),
    "cost": GammaPolicy(prefer=Prefer.COST),
}
LINKS = {
    "jitter": Conditions(rtt_ms=6.0, jitter_ms=6.0),
    "loss": Conditions(rtt_ms=4.0, loss=0.02),
    "narrow": Conditions(rtt_ms=4.0, rate_kbit=400.0),
}


def requests(count: int) -> list[GenerationRequest]:
    rng = random.Random(5)
    return [
        GenerationRequest(
            tuple(rng.randrange(250) for _ in range(rng.randrange(1, 30))),
            SamplingParams(rng.choice([0.0, 0.9]), seed=rng.getrandbits(40)),
            max_tokens=48,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("policy", POLICIES)
async def test_any_link_carries_the_same_text(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter], policy: str, link: str
) -> None:
    drafter = LookupFirstDrafter(LentDrafter(drafters["noisy"], None), long_match=3)
    async with (
        serving(loaded) as server,
        connected(server, loaded) as near,
        Relay(("127.0.0.1", server.port), LINKS[link], seed=1) as relay,
        CloudChannel(f"127.0.0.1:{relay.port}") as channel,
    ):
        for request in requests(2):
            alone = await near.write(request)
            together = await Edge(channel, loaded).write(request, drafter, POLICIES[policy])
            assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
            assert together.usage.completion_tokens == len(alone.token_ids)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_link_that_breaks_and_changes_in_mid_text_carries_the_same_text(
    loaded: LoadedTarget, drafters: dict[str, LlamaCppDrafter], policy: str
) -> None:
    async def trouble(relay: Relay) -> None:
        for rtt_ms in (40.0, 1.0, 20.0, 0.0):
            await asyncio.sleep(0.08)
            relay.cut()
            relay.conditions = Conditions(rtt_ms=rtt_ms, jitter_ms=2.0)
            await asyncio.sleep(0.08)
            relay.freeze()
            await asyncio.sleep(0.05)
            relay.thaw()

    async with (
        serving(loaded) as server,
        connected(server, loaded) as near,
        Relay(("127.0.0.1", server.port), Conditions(rtt_ms=5.0), seed=2) as relay,
        CloudChannel(f"127.0.0.1:{relay.port}") as channel,
    ):
        for request in requests(2):
            alone = await near.write(request)
            troubling = asyncio.create_task(trouble(relay))
            together = await Edge(channel, loaded).write(request, drafters["noisy"], POLICIES[policy])
            await troubling
            assert (together.token_ids, together.text) == (alone.token_ids, alone.text)
