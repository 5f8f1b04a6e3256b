"""A loaded GGUF model: the handle that a tokenizer and a drafter share."""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any

from draftwire_edge.llama_runtime import LOG, llama_cpp, with_reason
from draftwire_models.gguf_header import read_header
from draftwire_protocol.errors import DrafterError


class LlamaModel:
    """Weights, or with ``vocab_only`` just the vocabulary, of one GGUF file.

    Args:
        path: the file.
        vocab_only: read no weights; a tokenizer needs none.
        gpu_layers: layers to put on the GPU when llama.cpp was built for one; -1 means all.

    Raises:
        CorruptModelError: the file is damaged or no GGUF.
        UnreadableModelError: there is no file, or it may not be read.
        DrafterError: llama.cpp is missing or cannot load the file; quotes its reason.
    """

    def __init__(self, path: Path, *, vocab_only: bool = False, gpu_layers: int = -1) -> None:
        read_header(path)  # some damage would make llama.cpp end the process
        self.path = path
        self._llama = llama_cpp()
        self._handle: Any = self._load(vocab_only, gpu_layers)
        self._free = weakref.finalize(self, self._llama.llama_model_free, self._handle)

    def _load(self, vocab_only: bool, gpu_layers: int) -> Any:
        params = self._llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu_layers if self._llama.llama_supports_gpu_offload() else 0
        if b"AMX_INT8 = 1" in self._llama.llama_print_system_info():
            # Weights packed for AMX end the process with a protection fault on some machines (seen with
            # llama.cpp as of llama-cpp-python 0.3.36); only servers have it, so laptops lose nothing.
            params.use_extra_bufts = False
        LOG.clear()
        handle = self._llama.llama_model_load_from_file(os.fsencode(self.path), params)
        if handle is None:
            raise DrafterError(
                with_reason(f"llama.cpp cannot load {self.path}")
                + ". The file may need a newer llama-cpp-python, or it is damaged: download it again"
            )
        return handle

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer.

        Raises:
            DrafterError: the model was closed.
        """
        if not self._free.alive:
            raise DrafterError(f"the draft model {self.path.name} is closed")
        return self._handle

    @property
    def vocab(self) -> Any:
        """llama.cpp's pointer to the vocabulary."""
        return self._llama.llama_model_get_vocab(self.handle)

    @property
    def training_context(self) -> int:
        """Tokens the model was trained to see; 0 when the file does not say."""
        return int(self._llama.llama_model_n_ctx_train(self.handle))

    def metadata(self, key: str) -> str | None:
        """A scalar of the file's metadata as text; None when the file has no such key."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.raw[:length].decode("utf-8", "replace")
            size = length + 1

    def close(self) -> None:
        """Free the model; later use raises, closing again does nothing."""
        self._free()
