"""One token sequence in llama.cpp's KV store: extend it, cut it back, read the last logits."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwire_edge.llama_model import LlamaModel
from draftwire_edge.llama_runtime import LOG, default_threads, llama_cpp, with_reason
from draftwire_protocol.errors import DrafterError
from draftwire_protocol.prefix import common_prefix
from draftwire_protocol.sampling import Float32Array

#: Most tokens of one llama_decode call.
BATCH_TOKENS = 512
#: llama_decode's answer when it was interrupted.
_ABORTED = 2
#: llama.cpp's batch is never longer than its context; the probe needs three tokens.
_LEAST_CONTEXT = 64


class InterruptedDecodeError(DrafterError):
    """Somebody asked for the decode at hand to end; the store is as it was before."""


class _Interrupt:
    """A flag that llama.cpp looks at between the operations of a decode, without any Python in between.

    llama.cpp calls a function with a pointer and stops when it says true. The C library's ``strlen`` says
    0 of an empty string and 1 of a string of one byte.
    """

    def __init__(self, llama: Any) -> None:
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
        self.function: Any = llama.ggml_abort_callback(strlen)
        self.text = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """End the decode at hand."""
        self.text[0] = b"!"

    def clear(self) -> None:
        """Let decodes run to their end."""
        self.text[0] = b"\0"


class LlamaSequence:
    """The KV store's one sequence, always equal to ``ids``.

    Not safe for use from several threads at a time.

    Args:
        model: its weights; must outlive the sequence.
        context_length: most tokens to hold.
        threads: for decoding; None chooses by the number of cores.

    Raises:
        DrafterError: llama.cpp refuses the settings, or the model cannot forget single tokens.
    """

    def __init__(self, model: LlamaModel, context_length: int, threads: int | None = None) -> None:
        self._llama: Any = llama_cpp()
        _refuse_unsuitable(self._llama, model)
        self._model = model  # freed only after the context that uses it
        self._context: Any = self._create(context_length, threads or default_threads())
        self._free_context = weakref.finalize(self, self._llama.llama_free, self._context)
        self._memory: Any = self._llama.llama_get_memory(self._context)
        self._interrupt = _Interrupt(self._llama)
        self._llama.llama_set_abort_callback(
            self._context, self._interrupt.function, ctypes.addressof(self._interrupt.text)
        )
        self._batch: Any = self._llama.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._free_batch = weakref.finalize(self, self._llama.llama_batch_free, self._batch)
        self._prepare_batch()
        self._n_vocab = int(self._llama.llama_vocab_n_tokens(model.vocab))
        self._row_address = 0
        #: Ids in the KV store, oldest first.
        self.ids: list[int] = []
        #: Whether the last logits are those after ``ids[-1]``.
        self._fresh = False
        #: Tokens run through the model so far.
        self.decoded_tokens = 0
        #: Seconds spent inside llama.cpp so far.
        self.model_seconds = 0.0
        #: Times llama.cpp refused to cut back and everything was decoded again.
        self.refused_removals = 0
        try:
            self._probe_removal()
        except BaseException:
            self.close()
            raise

    def _create(self, context_length: int, threads: int) -> Any:
        """A context for one sequence that gives one row of logits a call."""
        params = self._llama.llama_context_default_params()
        params.n_ctx = max(context_length, _LEAST_CONTEXT)
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = True  # sliding windows keep what a rollback may need again
        params.no_perf = True
        if hasattr(params, "n_outputs_max"):
            params.n_outputs_max = 1  # saves a row of logits for each token of a batch: 300 MB at 150,000 ids
        LOG.clear()
        context = self._llama.llama_init_from_model(self._model.handle, params)
        if context is None:
            raise DrafterError(
                with_reason(f"llama.cpp cannot hold {context_length} tokens of {self._model.path.name}")
                + ". Try a shorter context"
            )
        return context

    def _prepare_batch(self) -> None:
        """Numpy views of the batch's arrays, and the fields that never change."""
        as_array = np.ctypeslib.as_array
        shape = (BATCH_TOKENS,)
        self._tokens = as_array(self._batch.token, shape)
        self._positions = as_array(self._batch.pos, shape)
        self._wanted = as_array(self._batch.logits, shape)
        as_array(self._batch.n_seq_id, shape)[:] = 1
        for index in range(BATCH_TOKENS):
            self._batch.seq_id[index][0] = 0

    def _probe_removal(self) -> None:
        """Remove one token of three and look whether it is gone."""
        self.append([0, 0, 0])
        removed = self._llama.llama_memory_seq_rm(self._memory, 0, 2, -1)
        last = int(self._llama.llama_memory_seq_pos_max(self._memory, 0))
        if not removed or last != 1:
            raise DrafterError(
                f"{self._model.path.name} cannot draft: its cache cannot forget single tokens"
                f" (removal {'refused' if not removed else f'left position {last}'}),"
                " which every rejected guess needs. Choose a plain transformer model"
            )
        self.clear()
        self.decoded_tokens, self.model_seconds = 0, 0.0

    def close(self) -> None:
        """Free the store; closing again does nothing."""
        self._free_batch()
        self._free_context()

    def clear(self) -> None:
        """Forget everything."""
        self._llama.llama_memory_clear(self._memory, True)
        self.ids = []
        self._fresh = False

    def move_to(self, context: Sequence[int]) -> None:
        """Make the store hold exactly ``context``, with its logits at hand.

        Keeps the longest common prefix, and decodes at least the last token unless its logits are
        still there.

        Args:
            context: ``[n]``, n >= 1.
        """
        keep = common_prefix(self.ids, context)
        if keep == len(context) and not (self._fresh and keep == len(self.ids)):
            keep -= 1
        self.cut(keep)
        self.append(context[len(self.ids) :])

    def cut(self, keep: int) -> None:
        """Forget all but the first ``keep`` ids; on refusal forget all of them, and count it."""
        if keep == len(self.ids):
            return
        self._fresh = False
        if self._llama.llama_memory_seq_rm(self._memory, 0, keep, -1):
            del self.ids[keep:]
        else:
            self.refused_removals += 1
            self.clear()

    def interrupt(self) -> None:
        """Let the decode at hand end with InterruptedDecodeError; may be called from any thread."""
        self._interrupt.set()

    def go_on(self) -> None:
        """Take back an ``interrupt``."""
        self._interrupt.clear()

    def append(self, ids: Sequence[int]) -> None:
        """Decode some more tokens, ``[n]``; leaves the logits after the last one.

        Raises:
            InterruptedDecodeError: it was interrupted; chunks that were through stay.
            DrafterError: llama.cpp failed; the store is then empty.
        """
        for start in range(0, len(ids), BATCH_TOKENS):
            chunk = ids[start : start + BATCH_TOKENS]
            self._decode(chunk, want_logits=start + BATCH_TOKENS >= len(ids))

    def _decode(self, chunk: Sequence[int], *, want_logits: bool) -> None:
        """One llama_decode of at most ``BATCH_TOKENS`` ids."""
        count, past = len(chunk), len(self.ids)
        self._tokens[:count] = chunk
        self._positions[:count] = range(past, past + count)
        self._wanted[:count] = 0
        self._wanted[count - 1] = want_logits
        self._batch.n_tokens = count
        LOG.clear()
        started = time.perf_counter()
        code = self._llama.llama_decode(self._context, self._batch)
        self.model_seconds += time.perf_counter() - started
        if code == _ABORTED and self._llama.llama_memory_seq_rm(self._memory, 0, past, -1):
            self._fresh = False
            raise InterruptedDecodeError("the decode was interrupted")
        if code != 0:
            self.clear()
            raise DrafterError(with_reason(f"llama_decode returned {code} after {past} tokens"))
        self.ids.extend(chunk)
        self._fresh = want_logits
        self.decoded_tokens += count

    def logits(self) -> Float32Array:
        """Logits after the last id, float32 ``[n_vocab]``: a view that the next decode overwrites."""
        started = time.perf_counter()
        pointer = self._llama.llama_get_logits_ith(self._context, -1)  # on a GPU this waits for the decode
        self.model_seconds += time.perf_counter() - started
        if not (self._fresh and pointer):
            raise DrafterError("the draft model gave no logits")
        address = ctypes.addressof(pointer.contents)
        if address != self._row_address:  # it rarely moves, and making a view costs more than asking
            self._row_address, self._row = address, np.ctypeslib.as_array(pointer, (self._n_vocab,))
        return self._row


def _refuse_unsuitable(llama: Any, model: LlamaModel) -> None:
    """Refuse the kinds of model whose state cannot be cut back, or that do not write left to right."""
    kinds = {
        "llama_model_is_recurrent": "recurrent: its state cannot forget a rejected guess",
        "llama_model_is_hybrid": "partly recurrent: its state cannot forget a rejected guess",
        "llama_model_is_diffusion": "a diffusion model: it does not write one token after another",
        "llama_model_has_encoder": "an encoder model: it does not continue a text",
    }
    for function, reason in kinds.items():
        ask = getattr(llama, function, None)
        if ask is not None and ask(model.handle):
            raise DrafterError(
                f"{model.path.name} cannot draft because it is {reason}. Choose a plain transformer model"
            )
