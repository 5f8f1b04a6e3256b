"""One text written by one arm, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import Controller
from draftwire_edge.drafter import Drafter
from draftwire_edge.generation import DoneEvent, GenerationRequest, TokenEvent
from draftwire_edge.session import EdgeSession
from draftwire_protocol.messages import ModelCard
from draftwire_sim.bench.arms import Arm


@dataclass(frozen=True, slots=True)
class Text:
    """Figures of one text."""

    arm: str
    #: Name of the link: R in ms, or a profile's.
    link: str
    prompt: int
    tokens: tuple[int, ...]
    tpot_ms: float
    ttft_ms: float
    target_passes: int
    num_guessed: int
    num_drafted: int
    num_accepted: int
    bytes_up: int
    bytes_down: int
    #: Seconds from the request to each token.
    token_times_s: tuple[float, ...]
    #: Whether it is the target's; None where another text is meant.
    identical: bool | None

    def as_json(self) -> dict[str, Any]:
        """Without the tokens themselves."""
        row = asdict(self)
        row["tokens"] = len(self.tokens)
        row["token_times_s"] = [round(one, 5) for one in self.token_times_s]
        return row


class Writer:
    """One arm's session over one channel; its controller lasts from text to text.

    Args:
        arm: what to write with.
        channel: open.
        card: of the target.
        pieces: bytes of every real id.
        drafter: lent; not closed.
    """

    def __init__(
        self, arm: Arm, channel: CloudChannel, card: ModelCard, pieces: Sequence[bytes], drafter: Drafter
    ) -> None:
        self.arm = arm
        self.controller = Controller(arm.policy)
        alone = arm.policy.mode is not None and arm.policy.mode.value == "cloud"
        self._session = EdgeSession(channel, card, pieces, None if alone else drafter, self.controller)

    async def write(
        self, request: GenerationRequest, expected: Sequence[int], prompt: int, link: str
    ) -> Text:
        """Write one text and compare it.

        Args:
            request: what to write.
            expected: the target's own tokens, of which at least as many are known as are asked for.
            prompt: which one it is.
            link: its name, for the record.
        """
        started, times = time.perf_counter(), []
        async for event in self._session.generate(request):
            if isinstance(event, TokenEvent):
                times.append(time.perf_counter() - started)
            elif isinstance(event, DoneEvent):
                result = event.result
        timings = result.timings
        tokens = result.token_ids
        return Text(
            self.arm.name, link, prompt, tokens, timings.tpot_ms or 0.0, timings.ttft_ms,
            timings.target_passes, timings.num_guessed_tokens, timings.num_draft_tokens,
            timings.num_accepted_tokens, timings.bytes_up, timings.bytes_down, tuple(times),
            identical=tokens == tuple(expected[: len(tokens)]),
        )  # fmt: skip

    async def close(self) -> None:
        """End its session."""
        await self._session.aclose()
