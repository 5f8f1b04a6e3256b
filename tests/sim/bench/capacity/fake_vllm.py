"""A Python that has a vLLM: an interpreter's wrapper with a package of that name, which runs transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_PACKAGE = """
import json, os, sys
from types import SimpleNamespace

__version__ = "0.0.fake"
print("vLLM is talkative")


class SamplingParams:
    def __init__(self, **chosen):
        self.chosen = chosen


class LLM:
    def __init__(self, folder, **chosen):
        if not os.path.isdir(folder):
            sys.exit(3)
        variables = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "OMP_WAIT_POLICY")
        environment = {name: os.environ.get(name) for name in variables}
        note("loaded", folder=folder, environment=environment, **chosen)
        self._folder, self._dtype, self._model = folder, chosen["dtype"], None

    def generate(self, prompts, params, use_tqdm):
        note("asked", params=[one.chosen for one in params])
        return [self._one(p["prompt_token_ids"], one.chosen["max_tokens"]) for p, one in zip(prompts, params)]

    def _one(self, ids, n):
        import torch
        from transformers import AutoModelForCausalLM

        if self._model is None:
            dtype = getattr(torch, self._dtype)
            self._model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=dtype)
        prompt = torch.tensor([ids])
        lengths = {"min_new_tokens": n, "max_new_tokens": n}
        mask = torch.ones_like(prompt)
        written = self._model.generate(prompt, attention_mask=mask, do_sample=False, **lengths)
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(written[0, len(ids):].tolist()))])


def note(what, **facts):
    with open(os.environ["FAKE_VLLM_NOTES"], "a") as notes:
        notes.write(json.dumps({"what": what, **facts}) + "\\n")
"""


class FakeVllm:
    """Where it lies and what was asked of it.

    Args:
        folder: empty.
    """

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes.jsonl"
        (folder / "vllm.py").write_text(_PACKAGE)
        self.python = folder / "python"
        self.python.write_text(
            f'#!/bin/sh\nFAKE_VLLM_NOTES={self._notes} PYTHONPATH={folder} exec {sys.executable} "$@"\n'
        )
        self.python.chmod(0o755)

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What it was loaded with, then what it was asked for."""
        return [json.loads(line) for line in self._notes.read_text().splitlines()]
