"""One edge without a draft model: writes a text over the real wire and notes when each verdict came."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwire_edge.channel import CloudChannel, DecodeStream
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.messages import (
    Draft,
    Finished,
    Mode,
    ModelCard,
    Open,
    Opened,
    Verdict,
)
from draftwire_protocol.params import SamplingParams
from draftwire_sim.bench.capacity.records import Seen, Written
from draftwire_sim.bench.capacity.script import Script


@dataclass(frozen=True, slots=True)
class Task:
    """A text to write."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    #: None streams from the cloud alone; else lockstep.
    script: Script | None = None
    #: Most drafted tokens a round; fewer where the cloud says so.
    gamma: int = 5
    #: c_d: seconds that drafting a token takes.
    draft_s: float = 0.0


class ScriptedEdge:
    """Writes texts over one channel.

    Args:
        channel: open.
        card: of the target.
    """

    def __init__(self, channel: CloudChannel, card: ModelCard) -> None:
        self._channel = channel
        self._card = card

    async def write(self, task: Task, heard: Callable[[Written], None] = lambda _: None) -> Written:
        """Write one text greedily, in a session of its own.

        Args:
            task: what to write.
            heard: told after each verdict what is written so far.
        """
        stream = self._channel.decode()
        try:
            written = Written(len(task.prompt_ids), time.perf_counter())
            await stream.send(self._open(task))
            await self._follow(stream, task, written, heard)
            return written
        finally:
            stream.cancel()

    def _open(self, task: Task) -> Open:
        mode = Mode.CLOUD if task.script is None else Mode.LOCKSTEP
        return Open(
            secrets.token_hex(8), task.prompt_ids, SamplingParams(), task.max_tokens, mode,
            model_id=self._card.model_id,
        )  # fmt: skip

    async def _follow(
        self, stream: DecodeStream, task: Task, written: Written, heard: Callable[[Written], None]
    ) -> None:
        """Answer every verdict with a draft until the text is over."""
        sent_at, epoch = written.asked_at_s, 0
        block: tuple[int, ...] = ()
        while True:
            # 1. What the cloud says.
            answer = await stream.receive()
            now = time.perf_counter()
            if isinstance(answer, Opened):
                written.cached = answer.cached
                continue
            if isinstance(answer, Finished):
                written.usage = answer.usage
                return
            # 2. Note it, and begin a new branch where a guess was wrong.
            kept = self._kept(answer, block, written)
            written.note(Seen(now - sent_at, now, len(kept), answer.timing), kept)
            heard(written)
            epoch += answer.num_accepted < len(block)
            sent_at = now
            if task.script is None or self._over(task, written.tokens):
                continue
            # 3. Draft, and send.
            gamma = min(task.gamma, answer.gamma_budget or task.gamma)
            block = task.script.block(len(written.tokens), gamma)
            if task.draft_s:
                await asyncio.sleep(task.draft_s * len(block))
            sent_at = time.perf_counter()
            await stream.send(Draft(epoch, len(task.prompt_ids) + len(written.tokens), block))

    @staticmethod
    def _kept(answer: Verdict, block: Sequence[int], written: Written) -> list[int]:
        """The tokens that a verdict commits.

        Raises:
            ProtocolError: it answers something else than what was sent.
        """
        if answer.start != written.prompt_tokens + len(written.tokens) or answer.num_accepted > len(block):
            raise ProtocolError(f"a verdict for position {answer.start} that was not asked for")
        return [*block[: answer.num_accepted], *answer.ids]

    def _over(self, task: Task, tokens: Sequence[int]) -> bool:
        """Whether no draft is wanted any more: Finished is on its way."""
        return len(tokens) >= task.max_tokens or tokens[-1] in self._card.eos_ids
