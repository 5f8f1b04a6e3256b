"""Measures, through the wire, whether verifying in blocks gives what decoding one at a time gives.

The cloud writes a text alone, one token a pass, with log-probabilities. The same text is then offered
back as drafts of several block sizes. Every position's log-probabilities travel as float32 and are
compared bit for bit. Neighbours in a pass are not compared: the engine runs one session a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_edge.channel import CloudChannel
from draftwire_edge.controller import Controller, GammaPolicy
from draftwire_edge.drafter import Guess, WantMore
from draftwire_edge.generation import DoneEvent, GenerationRequest, GenerationResult
from draftwire_edge.proposer import Proposer
from draftwire_edge.session import EdgeSession
from draftwire_protocol.errors import DraftwireError
from draftwire_protocol.messages import Mode, ModelCard

#: Block sizes, the target's own token not counted.
GAMMAS = (1, 4, 7)
#: Fewest positions: the first token comes without a draft, the last one is never drafted.
SHORTEST = max(GAMMAS) + 2
_CLOUD_ALONE = GammaPolicy(mode=Mode.CLOUD)


@dataclass(frozen=True, slots=True)
class Difference:
    """One position at which two ways of computing differ."""

    #: Index in the output.
    place: int
    #: Largest difference of the compared log-probabilities, in nats.
    size: float
    #: Between the likeliest and the second token when decoded alone, in nats.
    gap: float
    #: Whether another token was written.
    flipped: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """One way of computing against decoding alone."""

    #: E.g. "blocks of 4".
    way: str
    #: Positions compared; after a flip the texts differ and comparing ends.
    positions: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.way}: {self.positions} positions, every bit the same"
        flips = sum(one.flipped for one in self.differences)
        largest = max(one.size for one in self.differences)
        nearest = min(one.gap for one in self.differences)
        return (
            f"{self.way}: {len(self.differences)} of {self.positions} positions differ, by up to "
            f"{largest:.1e} nats where the second token is {nearest:.1e} nats behind or more; {flips} flipped"
        )


class KnownText:
    """A drafter that proposes a text it was given.

    Args:
        text: the output, ``[n]``.
        num_prompt: length of the prompt before it.
    """

    name = "known text"
    context_length = 1 << 30
    model_seconds = 0.0

    def __init__(self, text: Sequence[int], num_prompt: int) -> None:
        self._text = text
        self._num_prompt = num_prompt

    def prefill(self, context: Sequence[int]) -> None:
        """Nothing to read."""

    def draft(
        self, context: Sequence[int], proposer: Proposer, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """What comes next in the text, as far as the block goes."""
        at = len(context) - self._num_prompt
        block: list[Guess] = []
        for token in self._text[at : at + limit]:
            block.append(proposer.copied(token, 1.0))
            if not want_more(block):
                break
        return block

    def close(self) -> None:
        """Nothing to free."""


class ExactnessProbe:
    """Compares ways of computing one text.

    Args:
        channel: open, to the cloud.
        card: of its target.
        pieces: bytes of every real id.
        prompt_ids: what the text follows.
        count: tokens to compare.
    """

    def __init__(
        self,
        channel: CloudChannel,
        card: ModelCard,
        pieces: Sequence[bytes],
        prompt_ids: Sequence[int],
        count: int,
    ) -> None:
        self._channel, self._card, self._pieces = channel, card, pieces
        self._request = GenerationRequest(tuple(prompt_ids), max_tokens=count, top_logprobs=2)

    async def measure(self) -> list[Comparison]:
        """Every block size.

        Raises:
            DraftwireError: the text ended before there was enough to compare.
        """
        alone = await self._write(self._request, None, _CLOUD_ALONE)
        if len(alone.token_ids) < SHORTEST:
            raise DraftwireError(f"the text ended after {len(alone.token_ids)} tokens: nothing was compared")
        found = []
        for gamma in GAMMAS:
            drafter = KnownText(alone.token_ids, len(self._request.prompt_ids))
            blocks = await self._write(self._request, drafter, GammaPolicy(gamma, Mode.LOCKSTEP))
            found.append(compare(f"blocks of {gamma}", alone, blocks))
        return found

    async def _write(
        self, request: GenerationRequest, drafter: KnownText | None, policy: GammaPolicy
    ) -> GenerationResult:
        session = EdgeSession(self._channel, self._card, self._pieces, drafter, Controller(policy))
        try:
            async for event in session.generate(request):
                if isinstance(event, DoneEvent):
                    return event.result
        finally:
            await session.aclose()
        raise DraftwireError("the cloud ended the text without a result")


def compare(way: str, alone: GenerationResult, other: GenerationResult) -> Comparison:
    """Positions at which another way of computing the text gave other bits.

    Args:
        way: what to call it.
        alone: decoded one at a time; both with the log-probabilities of two tokens.
        other: the other way.
    """
    differences: list[Difference] = []
    positions = 0
    for place, (ours, theirs) in enumerate(zip(alone.logprobs, other.logprobs, strict=False)):
        positions += 1
        flipped = alone.token_ids[place] != other.token_ids[place]
        if ours != theirs:
            pairs = zip(ours.top, theirs.top, strict=True)
            size = max(abs(a - b) for (_, a), (_, b) in pairs)
            differences.append(Difference(place, size, ours.top[0][1] - ours.top[1][1], flipped))
        if flipped:
            break
    return Comparison(way, positions, tuple(differences))
