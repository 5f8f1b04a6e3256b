"""vLLM with n-gram drafts, on lines of JSON; run by an interpreter that has vLLM, not as a part of draftwire.

    python vllm_worker.py MODEL_FOLDER DTYPE GAMMA MAX_LENGTH

In: ``{"prompts": [[id, ...], ...], "max_tokens": [n, ...]}``. Out: its
version when it is ready, then for each line ``{"seconds": s, "outputs": [[id, ...], ...]}``.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Load the model, say that it is ready, and write until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints belongs to the notes
    import vllm  # type: ignore[import-not-found]  # noqa: PLC0415  # prints when it is imported

    folder, dtype, gamma, length = sys.argv[1:]
    drafts = {"method": "ngram", "num_speculative_tokens": int(gamma), "prompt_lookup_max": 4}
    model: Any = vllm.LLM(
        folder, dtype=dtype, max_model_len=int(length), speculative_config=drafts,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip
    answers.write(json.dumps({"version": vllm.__version__}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        params = [vllm.SamplingParams(temperature=0.0, max_tokens=n) for n in asked["max_tokens"]]
        started = time.perf_counter()
        written = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        outputs = [list(one.outputs[0].token_ids) for one in written]
        answers.write(json.dumps({"seconds": seconds, "outputs": outputs}) + "\n")


if __name__ == "__main__":
    main()
