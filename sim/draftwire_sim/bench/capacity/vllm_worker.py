"""vLLM with n-gram drafts, on lines of JSON; run by an interpreter that has vLLM, not as a part of draftwire.

    python vllm_worker.py MODEL_FOLDER DTYPE GAMMA MAX_LENGTH THREADS

THREADS is 0 for vLLM's own choice. In: ``{"prompts": [[id, ...], ...], "max_tokens": [n, ...]}``. Out: its
version when it is ready, then for each line ``{"seconds": s, "outputs": [[id, ...], ...]}``.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_FAST_OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"


def main() -> None:
    """Load the model, say that it is ready, and write until the input ends."""
    # By itself it takes nearly all memory for keys and values; our service has 2 GiB too.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    _choose_threads(int(sys.argv[5]))
    _preload(_FAST_OPENMP)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints belongs to the notes
    model, version = _load()
    answers.write(json.dumps({"version": version}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_write(model, **json.loads(line))) + "\n")


def _choose_threads(threads: int) -> None:
    """Bind it to so many cores; by itself it leaves one to its scheduler, and of two that is half."""
    if threads and hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))


def _preload(library: Path) -> None:
    """Start anew with the OpenMP that vLLM recommends for drafts on a CPU, where its environment has it."""
    if library.exists() and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = str(library)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606  # ourselves


def _load() -> tuple[Any, str]:
    """The model and vLLM's version."""
    import vllm  # type: ignore[import-not-found]  # noqa: PLC0415  # prints when it is imported

    folder, dtype, gamma, length = sys.argv[1:5]
    drafts = {"method": "ngram", "num_speculative_tokens": int(gamma), "prompt_lookup_max": 4}
    model = vllm.LLM(
        folder, dtype=dtype, max_model_len=int(length), speculative_config=drafts,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    return model, str(vllm.__version__)


def _write(model: Any, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, Any]:
    """All texts at once, each of exactly so many tokens."""
    import vllm  # noqa: PLC0415  # loaded already

    params = [vllm.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in max_tokens]
    started = time.perf_counter()
    written = model.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "outputs": [list(one.outputs[0].token_ids) for one in written]}


if __name__ == "__main__":
    main()
