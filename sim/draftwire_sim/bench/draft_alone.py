"""The draft model alone: what a laptop writes without any cloud, which is another text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from draftwire_edge.drafter import Drafter, Guess
from draftwire_edge.generation import GenerationRequest
from draftwire_edge.proposer import Proposer
from draftwire_edge.recorder import time_per_output_token_ms
from draftwire_sim.bench.arms import Arm
from draftwire_sim.bench.texts import Text


class DraftWriter:
    """Lets the draft model write by itself, one token after the other.

    Args:
        arm: what it is called.
        drafter: lent; not closed.
        eos_ids: ids that end a text.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        arm: Arm,
        drafter: Drafter,
        eos_ids: Collection[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.arm = arm
        self._drafter = drafter
        self._eos_ids = eos_ids
        self._clock = clock

    async def write(
        self, request: GenerationRequest, expected: Sequence[int], prompt: int, link: str
    ) -> Text:
        """Write one text; nothing says what it should be.

        Args:
            request: what to write.
            expected: the target's own tokens; not these.
            prompt: which one it is.
            link: for the record; nothing goes over it.
        """
        del expected
        started = self._clock()
        tokens, times = await asyncio.to_thread(self._write, request)
        times_s = tuple(one - started for one in times)
        return Text(
            arm=self.arm.name, link=link, prompt=prompt, tokens=tokens,
            tpot_ms=time_per_output_token_ms(times_s) or 0.0, ttft_ms=1e3 * times_s[0] if times_s else 0.0,
            target_passes=0, num_guessed=len(tokens), num_drafted=0, num_accepted=0, bytes_up=0, bytes_down=0,
            token_times_s=times_s, identical=None,
        )  # fmt: skip

    def _write(self, request: GenerationRequest) -> tuple[tuple[int, ...], list[float]]:
        """The tokens, and when each was there."""
        times: list[float] = []

        def goes_on(block: Sequence[Guess]) -> bool:
            times.append(self._clock())
            return block[-1].token not in self._eos_ids

        proposer = Proposer(request.sampling, num_prompt=len(request.prompt_ids), eos_ids=self._eos_ids)
        block = self._drafter.draft(request.prompt_ids, proposer, request.max_tokens, goes_on)
        if len(times) < len(block):
            times.append(self._clock())  # nobody is asked after the last one
        return tuple(guess.token for guess in block), times

    async def close(self) -> None:
        """There is nothing to end."""
