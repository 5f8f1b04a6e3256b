"""A tiny draft/target pair that behaves like a real one, written in a fraction of a second.

The target is a Hugging Face folder, the drafters are GGUF files, and all of them share one byte-level
tokeniser. The weights are random but scaled so that the entropy is that of a real language model, and the
drafters are noisy copies of the target, so acceptance can be chosen from perfect to useless.

    pair = make_tiny_pair(tmp_path)
    pair.target_folder           # for AutoModelForCausalLM and AutoTokenizer
    pair.drafters["noisy"]       # for llama.cpp

Not imported here, because they pull in large libraries: `tiny.llama_view` (a bare view of a GGUF through
llama.cpp) and `tiny.architectures` (random Hugging Face targets of other architectures).
"""

from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import TinyPair, make_tiny_pair

__all__ = ["NEVER_ENDS", "TinyConfig", "TinyPair", "make_tiny_pair"]
