"""The drafter that runs a GGUF model through llama.cpp."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from draftwire_edge.drafter import Guess, Guesser, WantMore
from draftwire_edge.drafters.llama_sequence import InterruptedDecodeError, LlamaSequence
from draftwire_edge.llama_model import LlamaModel
from draftwire_edge.tokenizer import GgufTokenizer
from draftwire_protocol.errors import DrafterError, NothingToWriteError, UserInputError


class LlamaCppDrafter:
    """Guesses with a small model, one decode a token.

    The model's cache keeps what it decoded last. The next context is compared with it, the common part
    is kept, and only the rest is decoded; so a rejected guess costs nothing but itself, and the next
    turn of a chat costs only what is new.

    Calls may come from any thread, one at a time; a second one at the same time is refused.

    Args:
        path: the GGUF file.
        context_length: most tokens, context and draft together; capped by the model's training context.
        threads: for decoding; None chooses by the number of cores.
        gpu_layers: layers to put on the GPU where llama.cpp was built for one; -1 means all.

    Raises:
        UserInputError: ``context_length`` is not positive.
        CorruptModelError: the file is damaged or no GGUF.
        UnreadableModelError: there is no file, or it may not be read.
        DrafterError: llama.cpp is missing, cannot load the model, or the model cannot draft.
    """

    def __init__(
        self, path: Path, *, context_length: int = 4096, threads: int | None = None, gpu_layers: int = -1
    ) -> None:
        if context_length < 1:
            raise UserInputError("--context-length", f"{context_length} is not positive", "Use e.g. 4096")
        self.name = path.stem
        #: Seconds spent inside llama.cpp so far.
        self.model_seconds = 0.0
        self._lock = threading.Lock()
        self._closed = self._drafting = False
        self._model = LlamaModel(path, gpu_layers=gpu_layers)
        try:
            self.context_length = min(context_length, self._model.training_context or context_length)
            #: Shares the loaded model; closed with the drafter.
            self.tokenizer = GgufTokenizer(self._model)
            self._sequence = LlamaSequence(self._model, self.context_length, threads)
        except BaseException:
            self._model.close()
            raise

    @property
    def decoded_tokens(self) -> int:
        """Tokens run through the model since it was loaded."""
        return self._sequence.decoded_tokens

    @property
    def refused_removals(self) -> int:
        """Times the cache would not be cut back and the whole context was decoded again."""
        return self._sequence.refused_removals

    def prefill(self, context: Sequence[int]) -> None:
        """Take in a context before it is needed; one that does not fit is left alone."""
        with self._owned():
            if self._fits(context) and list(context) != self._sequence.ids[: len(context)]:
                self._sequence.move_to(context)

    def draft(
        self, context: Sequence[int], proposer: Guesser, limit: int, want_more: WantMore
    ) -> list[Guess]:
        """Guess up to ``limit`` tokens after ``context``; fewer where the context length ends."""
        with self._owned():
            limit = min(limit, self.context_length - len(context))
            if limit < 1 or not context:
                return []
            block: list[Guess] = []
            # A branch on which nothing may be written ends the block; the text need not come this way.
            with self._interruptible(), suppress(NothingToWriteError, InterruptedDecodeError):
                self._sequence.move_to(context)
                proposer.begin(context)
                block.append(self._guess(proposer))
                while len(block) < limit and want_more(block):
                    self._sequence.append([block[-1].token])
                    block.append(self._guess(proposer))
            return block

    def interrupt(self) -> None:
        """End the draft at hand at once, in the middle of a token; may be called from any thread."""
        if self._drafting:
            self._sequence.interrupt()

    def close(self) -> None:
        """Free the model and its cache; closing again does nothing."""
        with self._lock:
            self._closed = True
            self._sequence.close()
            self._model.close()

    def _guess(self, proposer: Guesser) -> Guess:
        """The guess for the position after the cache's last token."""
        return proposer.guess(self._sequence.logits()[: self.tokenizer.n_tokens])

    def _fits(self, context: Sequence[int]) -> bool:
        return 0 < len(context) <= self.context_length

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """What happens here may be interrupted; an interrupt that came too late has no effect."""
        self._sequence.go_on()
        self._drafting = True
        try:
            yield
        finally:
            self._drafting = False
            self._sequence.go_on()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Own the model for one call.

        Raises:
            DrafterError: another call is in progress, or the drafter is closed.
        """
        if not self._lock.acquire(blocking=False):
            raise DrafterError(f"the draft model {self.name} is in use by another call; one at a time")
        try:
            if self._closed:
                raise DrafterError(f"the draft model {self.name} is closed")
            yield
        finally:
            self.model_seconds = self._sequence.model_seconds
            self._lock.release()
