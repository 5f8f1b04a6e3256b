"""A real service on a free port, and edges that talk to it over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.server import Address, CloudServer
from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import Controller, GammaPolicy
from draftwire_edge.drafter import Drafter, Guess, WantMore
from draftwire_edge.generation import DoneEvent, Event, GenerationRequest, GenerationResult
from draftwire_edge.handshake import fetch_card
from draftwire_edge.proposer import Proposer
from draftwire_edge.retry import RetryPolicy
from draftwire_edge.session import EdgeSession
from draftwire_protocol.messages import Mode
from draftwire_sim.bench.drafters import LentDrafter

QUICK_RETRY = RetryPolicy(first_wait_s=0.02, max_wait_s=0.2, deadline_s=20.0)
CLOUD_ALONE = GammaPolicy(mode=Mode.CLOUD)


@asynccontextmanager
async def serving(
    loaded: LoadedTarget, limits: EngineLimits | None = None, port: int = 0
) -> AsyncIterator[CloudServer]:
    """A running service around an already loaded target."""
    async with CloudServer(loaded, Address(port=port), limits or EngineLimits(), grace_s=0.5) as server:
        yield server


@dataclass
class Edge:
    """An open channel and what a session needs besides a drafter."""

    channel: CloudChannel
    loaded: LoadedTarget

    async def events(
        self,
        request: GenerationRequest,
        drafter: Drafter | None,
        policy: GammaPolicy,
        controller: Controller | None = None,
    ) -> AsyncIterator[Event]:
        """All events of one generation; the drafter stays open."""
        card = await fetch_card(self.channel)
        session = EdgeSession(
            self.channel,
            card,
            self.loaded.vocabulary.pieces,
            None if drafter is None else LentDrafter(drafter, None),
            controller or Controller(policy),
            QUICK_RETRY,
        )
        try:
            async for event in session.generate(request):
                yield event
        finally:
            await session.aclose()

    async def write(
        self,
        request: GenerationRequest,
        drafter: Drafter | None = None,
        policy: GammaPolicy = CLOUD_ALONE,
    ) -> GenerationResult:
        """One text."""
        async for event in self.events(request, drafter, policy):
            if isinstance(event, DoneEvent):
                return event.result
        raise AssertionError("no DoneEvent")


@asynccontextmanager
async def connected(server: CloudServer, loaded: LoadedTarget) -> AsyncIterator[Edge]:
    """An edge connected to a service."""
    async with CloudChannel(f"127.0.0.1:{server.port}") as channel:
        yield Edge(channel, loaded)


@dataclass
class ScriptedDrafter:
    """Proposes what a known text says, wrong at chosen output positions; records what it was asked."""

    script: Sequence[int]
    prompt_length: int
    wrong_at: frozenset[int] = frozenset()
    wrong_token: int = 0
    name: str = "scripted"
    context_length: int = 1 << 30
    model_seconds: float = 0.0
    asked: list[int] = field(default_factory=list)

    def prefill(self, context: Sequence[int]) -> None:
        """Nothing to read."""

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """The script's next tokens."""
        self.asked.append(limit)
        at = len(context) - self.prompt_length
        block: list[Guess] = []
        while len(block) < limit and at + len(block) < len(self.script):
            position = at + len(block)
            token = self.wrong_token if position in self.wrong_at else self.script[position]
            block.append(proposer.copied(token, 0.9))
            if not want_more(block):
                break
        return block

    def close(self) -> None:
        """Nothing to free."""
