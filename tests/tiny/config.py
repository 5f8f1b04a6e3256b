"""The sizes of the tiny pair, in one frozen dataclass."""

from dataclasses import dataclass

from tiny.vocabulary import EOS_IDS, N_TOKENS

NEVER_ENDS = -80.0
"""An `eos_lift` with which no text ends by itself: for tests that need a fixed number of tokens."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes and scales of the tiny Llama model; the tests state what the defaults were measured to give."""

    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    context_length: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    sigma: float = 4.0
    """Standard deviation of the logits; 4 gives 1.8 nats of entropy, near 0 every drafter looks good."""
    seed: int = 0
    vocab_pad: int = 0
    """Rows beyond the tokeniser in the target's embeddings and logits. They are as likely as real ids, so a
    target whose padding is not masked emits ids that no tokeniser knows."""
    drafter_vocab_pad: int = 0
    """The same for the drafters; may differ from the target's."""
    eos_lift: float | None = 2.0
    """About how many nats every end-of-generation id gains over an ordinary id. With 2 and seed 0, 70 % of
    greedy texts and 90 % of sampled ones end by themselves within 300 tokens, half of them within 135 and 95;
    the other greedy ones run into a loop. None leaves those ids as likely as any other (most greedy texts
    then run past 300), `NEVER_ENDS` makes them impossible in practice."""

    def __post_init__(self) -> None:
        """Refuse sizes on which llama.cpp would abort the whole process."""
        if self.n_embd % self.n_head or (self.n_embd // self.n_head) % 2:
            raise ValueError(f"n_embd={self.n_embd} must be n_head={self.n_head} times an even head size")
        if self.n_head % self.n_head_kv:
            raise ValueError(f"n_head={self.n_head} must be a multiple of n_head_kv={self.n_head_kv}")
        if min(self.vocab_pad, self.drafter_vocab_pad) < 0:
            raise ValueError("padding of the vocabulary must not be negative")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def n_tokens(self) -> int:
        """Ids the tokeniser knows, specials included: `len(tokenizer)`."""
        return N_TOKENS

    @property
    def target_rows(self) -> int:
        """Width of the target's logits."""
        return N_TOKENS + self.vocab_pad

    @property
    def drafter_rows(self) -> int:
        """Width of a drafter's logits."""
        return N_TOKENS + self.drafter_vocab_pad

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation, the tokeniser's own eos first."""
        return EOS_IDS
