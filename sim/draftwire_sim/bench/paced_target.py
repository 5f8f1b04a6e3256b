"""A stand-in for a data-centre GPU: replays what the real target wrote, at a stated speed.

    python -m draftwire_sim.bench.paced_target [--port 50051] [--a-ms 50] [--b-ms 1]

A forward pass over n new tokens takes a + b·n ms from its start, whatever is done in it: a block of k drafts
is n = k + 1, one token alone a + b. Of several sessions in one pass the tokens add up. Of one session at most
128 tokens count: a GPU reads a prompt by computing, far below the price of a token that is verified.
Everything around the pass is the real service: gRPC, engine loop, scheduler, session, judge.

Only the recorded prompts can be asked, and only the recorded text comes: greedily, or drawn at temperatures
up to 2, where no noise outweighs the peak of a row.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

import numpy as np
import torch

from draftwire_cloud.engine.facts import ModelFacts
from draftwire_cloud.engine.layout import KvLayout
from draftwire_cloud.engine.packing import Span
from draftwire_cloud.engine.probe import ExactnessReport
from draftwire_cloud.engine.shapes import ShapePolicy
from draftwire_cloud.engine.slots import SlotStore
from draftwire_cloud.engine.target import Target
from draftwire_cloud.engine_loop import EngineLimits
from draftwire_cloud.loading import LoadedTarget
from draftwire_cloud.server import Address, CloudServer
from draftwire_cloud.session import Vocabulary
from draftwire_edge.tokenizer import GgufTokenizer
from draftwire_models.resolve import resolve_draft
from draftwire_protocol.errors import UserInputError
from draftwire_protocol.fingerprint import piece_hashes
from draftwire_protocol.messages import MAX_DRAFT_TOKENS, ModelCard
from draftwire_sim.bench.recordings import PAIR, Recording, load_card, load_recordings

#: Most tokens of one session that cost time in one pass; no block is as long.
MOST_COUNTED = 128
#: Logit of the recorded token, others are 0. Noise lies within -4 and 37.
_PEAK = 100.0
#: ``time.sleep`` wakes up to this late; so much is waited for awake, in seconds.
_AWAKE_S = 0.00015


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a forward pass takes.

    Raises:
        ValueError: for a time below 0.
    """

    a_ms: float
    #: Of each new token.
    b_ms: float

    def __post_init__(self) -> None:
        if not (self.a_ms >= 0 and self.b_ms >= 0):
            raise ValueError(f"a = {self.a_ms} ms, b = {self.b_ms} ms; neither can be below 0")

    def pass_s(self, sizes: Sequence[int]) -> float:
        """Seconds of a pass over so many new tokens of each session."""
        return (self.a_ms + self.b_ms * sum(min(n, MOST_COUNTED) for n in sizes)) / 1e3


class OneHotRows:
    """Rows of logits with one peak each, in the same memory again and again.

    Writing 151,936 zeros a row anew would cost more than all the rest of a pass.
    """

    def __init__(self, n_vocab: int) -> None:
        self._memory = np.zeros((0, n_vocab), np.float32)
        self._peaks = np.zeros(0, np.int64)
        self.at(np.zeros(MAX_DRAFT_TOKENS + 1, np.int64))

    def at(self, ids: np.ndarray) -> np.ndarray:
        """Float32 ``[len(ids), n_vocab]`` with the peaks at these ids; valid until the next call."""
        count, n_vocab = len(ids), self._memory.shape[1]
        self._memory[np.arange(len(self._peaks)), self._peaks] = 0.0
        if count > len(self._memory):
            self._memory = np.full((count, n_vocab), 0.0, np.float32)  # unlike zeros, has its pages now
        self._memory[np.arange(count), ids] = _PEAK
        self._peaks = ids
        return self._memory[:count]


class Script:
    """A recorded text with its prompt in front and its end behind.

    Args:
        recording: the text.
        eos_ids: ids that end a text; the first one follows a text that was cut.
    """

    def __init__(self, recording: Recording, eos_ids: Sequence[int]) -> None:
        self._eos = eos_ids[0]
        self._prompt_length = len(recording.prompt_ids)
        self._ids = [*recording.prompt_ids, *recording.output_ids]
        if self._ids[-1] not in eos_ids:
            self._ids.append(self._eos)

    def follows(self, ids: Sequence[int]) -> bool:
        """Whether the ids are the prompt and as much as there is of the text."""
        return len(ids) >= self._prompt_length and self._ids[: len(ids)] == ids

    def after(self, length: int) -> int:
        """The id behind the first ``length`` ones."""
        return self._ids[length] if length < len(self._ids) else self._eos


class PacedTarget(Target):
    """A target that knows its texts by heart.

    Args:
        scripts: the texts.
        facts: of the target that wrote them.
        pace: how long a pass takes.
    """

    def __init__(self, scripts: Sequence[Script], facts: ModelFacts, pace: Pace) -> None:
        # Slots remember their ids, and there is nothing else to hold.
        layout = KvLayout({}, torch.float32, torch.device(facts.device))
        super().__init__(None, facts, SlotStore(layout, budget_bytes=0), ShapePolicy.off())
        self._scripts = scripts
        self._pace = pace
        self._rows = OneHotRows(facts.n_vocab)

    def forward(self, spans: Sequence[Span]) -> list[torch.Tensor]:
        """As a target's, at the stated pace.

        Raises:
            UserInputError: a text that is not recorded.
        """
        ends_at = time.perf_counter() + self._pace.pass_s([len(span.ids) for span in spans])
        self._check(spans)
        self.slots.reserve([(span.slot, span.slot.length + len(span.ids)) for span in spans])
        following = [list(self._following(span)) for span in spans]
        memory = torch.from_numpy(self._rows.at(np.array([*chain(*following)], np.int64)))
        rows = [memory[start:end] for start, end in pairwise(accumulate(map(len, following), initial=0))]
        for span in spans:
            span.slot.ids.extend(span.ids)
        sleep_until(ends_at)
        return rows

    def _following(self, span: Span) -> Iterator[int]:
        """The id behind each token whose logits are wanted.

        Behind a wrong draft it means nothing, and is never committed.
        """
        if not span.num_logits:
            return
        # The last tokens are drafts, but for one that is committed.
        committed = span.slot.length + len(span.ids) - (span.num_logits - 1)
        script = self._script_of([*span.slot.ids, *span.ids][:committed])
        for length in range(committed, committed + span.num_logits):
            yield script.after(length)

    def _script_of(self, committed: list[int]) -> Script:
        for script in self._scripts:
            if script.follows(committed):
                return script
        raise UserInputError(
            "prompt", "it is not recorded, or its text left the recording", "Ask what load_recordings() lists"
        )


def sleep_until(ends_at: float) -> None:
    """Return at this ``time.perf_counter()``, hardly later."""
    while (left := ends_at - time.perf_counter()) > 0:
        if left > _AWAKE_S:
            time.sleep(left - _AWAKE_S)


def paced(
    recordings: Sequence[Recording], pieces: Sequence[bytes], card: ModelCard, *, a_ms: float, b_ms: float
) -> LoadedTarget:
    """A target to serve.

    Args:
        recordings: the texts it can write.
        pieces: bytes of every id, ``[>= n_tokens]``; the draft model's will do.
        card: of the target that wrote them, with at least one EOS id.
        a_ms: of a pass.
        b_ms: of each new token in it.

    Raises:
        ValueError: other pieces than the recordings were made with, or a time below 0.
    """
    pieces = pieces[: card.n_tokens]
    if piece_hashes(pieces) != card.piece_hashes:
        raise ValueError(f"the recordings were made with another vocabulary than these {len(pieces)} pieces")
    scripts = [Script(recording, card.eos_ids) for recording in recordings]
    target = PacedTarget(scripts, _facts(card), Pace(a_ms, b_ms))
    vocabulary = Vocabulary(pieces, frozenset(card.special_ids), frozenset(card.eos_ids))
    # A replay gives the same rows in blocks of any shape, whatever the machine that recorded it did.
    card = replace(card, name=f"{card.name} replayed at {a_ms:g} + {b_ms:g}n ms", exact_shapes=True)
    return LoadedTarget(target, vocabulary, card, ExactnessReport(0, 0, 0, 0.0, 0.0))


def _facts(card: ModelCard) -> ModelFacts:
    return ModelFacts(
        architecture=card.architecture,
        n_vocab=card.n_vocab,
        context_length=card.context_length,
        eos_ids=card.eos_ids,
        dtype=card.dtype,
        weights="none",
        kv_bytes_per_token=0,
        device="cpu",
    )


def recorded(a_ms: float, b_ms: float) -> LoadedTarget:
    """The default pair's target, replayed; needs the pair's draft model only."""
    tokenizer = GgufTokenizer.from_file(resolve_draft(PAIR))
    try:
        return paced(load_recordings(), tokenizer.pieces, load_card(), a_ms=a_ms, b_ms=b_ms)
    finally:
        tokenizer.close()


async def serve(loaded: LoadedTarget, address: Address) -> None:
    """Serve until SIGTERM or SIGINT; says so in the words of ``draftwire-cloud serve``."""
    async with CloudServer(loaded, address, EngineLimits()) as server:
        sys.stdout.write(f"serving {loaded.card.name} on {address.host}:{server.port}\n")
        sys.stdout.flush()
        await server.serve_until_signal()


def main() -> None:
    """Serve the recordings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=50051, help="0 takes a free one")
    parser.add_argument("--a-ms", type=float, default=50.0, help="of a forward pass")
    parser.add_argument("--b-ms", type=float, default=1.0, help="of each new token in it")
    arguments = parser.parse_args()
    loaded = recorded(arguments.a_ms, arguments.b_ms)
    asyncio.run(serve(loaded, Address(arguments.host, arguments.port)))


if __name__ == "__main__":
    main()
