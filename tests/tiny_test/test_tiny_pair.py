"""The tiny pair is what the other tests take it for: one model and one tokeniser, seen by two libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tiny import NEVER_ENDS, TinyConfig, TinyPair, make_tiny_pair, vocabulary
from tiny.llama_view import LlamaView, open_llama
from tiny.texts import random_texts
from tiny.weights import LM_HEAD, build_weights

Logits = NDArray[np.float64]

N_PROMPTS, PROMPT_LENGTH = 8, 120


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """Return the pair with more drafters than usual, and padding that differs between the two ends."""
    config = TinyConfig(vocab_pad=7, drafter_vocab_pad=3)
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), config, noise=(0.0, 0.02, 0.05, 0.1, 0.2, 0.3))


@pytest.fixture(scope="module")
def target(pair: TinyPair) -> Any:
    """Return the target in float32."""
    return AutoModelForCausalLM.from_pretrained(pair.target_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(pair: TinyPair) -> Any:
    """Return the target's tokeniser."""
    return AutoTokenizer.from_pretrained(pair.target_folder)


@pytest.fixture(scope="module")
def drafter(pair: TinyPair) -> Iterator[LlamaView]:
    """Return the perfect drafter."""
    with open_llama(pair.drafters["perfect"]) as view:
        yield view


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Return random prompts over the whole vocabulary, specials included."""
    source = np.random.default_rng(5)
    return [source.integers(0, vocabulary.N_TOKENS, PROMPT_LENGTH).tolist() for _ in range(N_PROMPTS)]


@pytest.fixture(scope="module")
def target_logits(target: Any, prompts: list[list[int]]) -> Logits:
    """Return the target's logits [prompt, position, target_rows]."""
    with torch.no_grad():
        rows = [target(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in prompts]
    return np.stack(rows).astype(np.float64)


def drafter_logits(view: LlamaView, prompts: list[list[int]]) -> Logits:
    """Return a drafter's logits [prompt, position, drafter_rows]."""
    return np.stack([view.logits(ids) for ids in prompts]).astype(np.float64)


def probabilities(logits: Logits) -> Logits:
    """Return the softmax over the ids the tokeniser knows [..., N_TOKENS]."""
    real = logits[..., : vocabulary.N_TOKENS]
    weights = np.exp(real - real.max(axis=-1, keepdims=True))
    result: Logits = weights / weights.sum(axis=-1, keepdims=True)
    return result


def overlap(p: Logits, q: Logits) -> float:
    """Return the mean of sum min(p, q), the best acceptance any scheme can reach."""
    return float(np.minimum(p, q).sum(axis=-1).mean())


def test_tokenisers_agree_on_random_texts(drafter: LlamaView, tokenizer: Any) -> None:
    texts = list(random_texts(3000, seed=3))
    wrong = [
        text for text in texts if drafter.tokenize(text) != tokenizer.encode(text, add_special_tokens=False)
    ]
    assert wrong == []
    shortened = sum(len(drafter.tokenize(text)) < len(text.encode()) for text in texts)
    assert shortened > 2000, "most texts exercise a merge or a special"


def test_text_survives_the_round_trip(drafter: LlamaView, tokenizer: Any) -> None:
    for text in random_texts(500, seed=4):
        ids = drafter.tokenize(text)
        assert b"".join(map(drafter.piece, ids)) == text.encode()
        assert tokenizer.decode(ids) == text


def test_every_id_stands_for_the_same_bytes(drafter: LlamaView, tokenizer: Any) -> None:
    expected = vocabulary.token_bytes()
    assert len(expected) == len(set(expected)) == len(tokenizer) == vocabulary.N_TOKENS
    assert [drafter.piece(token) for token in range(vocabulary.N_TOKENS)] == expected
    stand_in = vocabulary.alphabet()
    texts = tokenizer.convert_ids_to_tokens(list(range(vocabulary.N_ORDINARY)))
    assert [bytes(stand_in[c] for c in text) for text in texts] == expected[: vocabulary.N_ORDINARY]
    assert tokenizer.convert_ids_to_tokens(list(range(vocabulary.N_ORDINARY, vocabulary.N_TOKENS))) == list(
        vocabulary.SPECIALS
    )


def test_specials_in_user_text_can_be_left_unparsed(drafter: LlamaView, tokenizer: Any) -> None:
    text = "a<|im_end|>b"
    assert drafter.tokenize(text) == tokenizer.encode(text)
    assert vocabulary.IM_END_ID in drafter.tokenize(text)
    plain = drafter.tokenize(text, parse_special=False)
    assert vocabulary.IM_END_ID not in plain
    assert plain == tokenizer.encode(text, split_special_tokens=True)


def test_end_ids_agree(pair: TinyPair, drafter: LlamaView, tokenizer: Any) -> None:
    generation = GenerationConfig.from_pretrained(pair.target_folder)
    assert set(generation.eos_token_id) == drafter.end_of_generation_ids() == set(pair.config.eos_ids)
    assert tokenizer.eos_token_id == pair.config.eos_ids[0] == vocabulary.IM_END_ID
    assert tokenizer.pad_token_id == generation.pad_token_id == vocabulary.PAD_ID
    assert tokenizer.bos_token_id is None
    assert drafter.tokenize("") == tokenizer.encode("") == []


def test_chat_templates_agree(drafter: LlamaView, tokenizer: Any) -> None:
    assert drafter.chat_template() == tokenizer.chat_template == vocabulary.CHAT_TEMPLATE
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama_cpp_and_transformers_compute_the_same_logits(
    drafter: LlamaView, prompts: list[list[int]], target_logits: Logits
) -> None:
    ours = drafter_logits(drafter, prompts)[..., : vocabulary.N_TOKENS]
    theirs = target_logits[..., : vocabulary.N_TOKENS]
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.array_equal(ours.argmax(axis=-1), theirs.argmax(axis=-1))


def test_padding_is_there_differs_and_would_win_if_unmasked(
    pair: TinyPair, drafter: LlamaView, target_logits: Logits
) -> None:
    assert target_logits.shape[-1] == pair.config.target_rows == vocabulary.N_TOKENS + 7
    assert drafter.n_vocab == pair.config.drafter_rows == vocabulary.N_TOKENS + 3
    assert (target_logits.argmax(axis=-1) >= vocabulary.N_TOKENS).any()


def test_padding_leaves_every_other_number_alone() -> None:
    config = TinyConfig()
    plain = build_weights(config, vocabulary.N_TOKENS)
    padded = build_weights(config, vocabulary.N_TOKENS + 7)
    for name, tensor in plain.items():
        assert np.array_equal(padded[name][: tensor.shape[0]], tensor)
    assert padded[LM_HEAD].shape[0] == vocabulary.N_TOKENS + 7


def test_entropy_is_that_of_a_real_model(target_logits: Logits) -> None:
    p = probabilities(target_logits)
    entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(axis=-1).mean()
    assert 1.5 < entropy < 2.2


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("perfect", 0.9999, 1.0001),
        ("noise_0.02", 0.92, 0.97),
        ("noisy", 0.83, 0.91),
        ("noise_0.1", 0.69, 0.80),
        ("poor", 0.46, 0.60),
        ("noise_0.3", 0.29, 0.45),
        ("useless", 0.0, 0.06),
    ],
)
def test_each_drafter_overlaps_the_target_as_stated(
    pair: TinyPair, prompts: list[list[int]], target_logits: Logits, name: str, low: float, high: float
) -> None:
    with open_llama(pair.drafters[name]) as view:
        q = probabilities(drafter_logits(view, prompts))
    assert low < overlap(probabilities(target_logits), q) < high


def lengths(model: Any, temperature: float, limit: int = 300, texts: int = 96) -> NDArray[np.int64]:
    """Return how many tokens [texts] each text takes to its first end id; `limit` if it has none."""
    source = np.random.default_rng(11)
    ids = torch.from_numpy(source.integers(0, vocabulary.N_ORDINARY, (texts, 12)))
    cache, found = None, np.full(texts, limit)
    for step in range(1, limit):
        with torch.no_grad():
            output = model(input_ids=ids, cache=cache, use_cache=True)
        cache = output.cache
        noise = temperature * source.gumbel(size=(texts, vocabulary.N_TOKENS))
        token = (output.logits[:, -1, : vocabulary.N_TOKENS].numpy() + noise).argmax(axis=-1)
        found[np.isin(token, vocabulary.EOS_IDS) & (found == limit)] = step
        ids = torch.from_numpy(token)[:, None]
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_most_texts_end_by_themselves(target: Any, temperature: float) -> None:
    found = lengths(target, temperature)
    assert (found < 300).mean() > 0.6
    assert 30 < np.median(found) < 200


def test_a_pair_that_never_ends(tmp_path: Path) -> None:
    pair = make_tiny_pair(tmp_path, TinyConfig(eos_lift=NEVER_ENDS), noise=())
    model = AutoModelForCausalLM.from_pretrained(pair.target_folder, dtype=torch.float32)
    assert (lengths(model, temperature=1.0, limit=120) == 120).all()
    assert list(pair.drafters) == ["useless"]


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    first, again = (make_tiny_pair(tmp_path / name, TinyConfig(seed=9)) for name in ("first", "again"))
    other = make_tiny_pair(tmp_path / "other", TinyConfig(seed=10))
    for name, path in first.drafters.items():
        assert path.read_bytes() == again.drafters[name].read_bytes() != other.drafters[name].read_bytes()
    for path in first.target_folder.iterdir():
        assert path.read_bytes() == (again.target_folder / path.name).read_bytes()


@pytest.mark.parametrize("wrong", [{"n_head_kv": 3}, {"n_head": 5}, {"n_embd": 36}, {"vocab_pad": -1}])
def test_sizes_that_abort_llama_cpp_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        TinyConfig(**wrong)
