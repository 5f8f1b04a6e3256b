"""The GGUF tokenizer against what was written into the file, and against transformers."""

import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_edge.tokenizer import GgufTokenizer
from draftwire_models import ModelCache
from draftwire_models.pairs import QWEN25_CODER_05B
from draftwire_protocol.errors import DrafterError
from tiny import TinyConfig, TinyPair, make_tiny_pair, vocabulary


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    config = TinyConfig(drafter_vocab_pad=19)
    return make_tiny_pair(tmp_path_factory.mktemp("pair"), config, noise=(0.0,))


@pytest.fixture(scope="module")
def tokenizer(padded: TinyPair) -> GgufTokenizer:
    return GgufTokenizer.from_file(padded.drafters["perfect"])


def test_pieces_are_the_bytes_of_the_real_ids(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.pieces == vocabulary.token_bytes()


def test_padding_counts_as_rows_but_not_as_tokens(tokenizer: GgufTokenizer) -> None:
    assert (tokenizer.n_vocab, tokenizer.n_tokens) == (vocabulary.N_TOKENS + 19, vocabulary.N_TOKENS)


def test_special_ids_are_the_control_tokens(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.special_ids == frozenset(range(vocabulary.N_ORDINARY, vocabulary.N_TOKENS))


def test_every_end_of_generation_id_is_listed(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.eos_ids == tuple(sorted(vocabulary.EOS_IDS))
    assert tokenizer.eos_id == vocabulary.IM_END_ID


def test_a_file_without_bos_has_none(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.encode("hi", add_special=True, parse_special=True) == tokenizer.encode(
        "hi", add_special=False, parse_special=True
    )


def test_template_is_read(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.chat_template == vocabulary.CHAT_TEMPLATE


def test_parse_special_decides_whether_written_control_tokens_count(tokenizer: GgufTokenizer) -> None:
    parsed = tokenizer.encode("a<|im_end|>", add_special=False, parse_special=True)
    spelled = tokenizer.encode("a<|im_end|>", add_special=False, parse_special=False)
    assert parsed[-1] == vocabulary.IM_END_ID
    assert not tokenizer.special_ids.intersection(spelled)
    assert b"".join(tokenizer.pieces[token] for token in spelled) == b"a<|im_end|>"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_pieces_give_the_text_back(tokenizer: GgufTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    composed = tokenizer._normalize(text)
    assert b"".join(tokenizer.pieces[token] for token in ids).decode() == composed


def test_empty_nul_and_lone_surrogate(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.encode("", add_special=True, parse_special=True) == []
    nul = tokenizer.encode("a\0b", add_special=False, parse_special=True)
    assert b"".join(tokenizer.pieces[token] for token in nul) == b"a\0b"
    lone = tokenizer.encode("a\ud800", add_special=False, parse_special=True)
    assert b"".join(tokenizer.pieces[token] for token in lone) == b"a?"


def test_same_ids_as_transformers(padded: TinyPair, tokenizer: GgufTokenizer) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(padded.target_folder)
    texts = [
        "the in there",
        "  \n\n x",
        "don't I'LL",
        "12345",
        "é 😀 日本語",
        "a<|im_end|>\n<|im_start|>b",
        "</s>",
    ]
    for text in texts:
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids, text


def test_closed_tokenizer_says_so(padded: TinyPair) -> None:
    tokenizer = GgufTokenizer.from_file(padded.drafters["perfect"])
    tokenizer.close()
    tokenizer.close()
    for use in (
        lambda: tokenizer.encode("a", add_special=False, parse_special=False),
        lambda: tokenizer.pieces,
    ):
        with pytest.raises(DrafterError, match="closed"):
            use()


# A vocabulary in which "</s>" is ordinary text, as in Qwen's, and with a BOS that prompts want.
LOOKALIKE, BOS, END, LONG = range(vocabulary.N_ORDINARY, vocabulary.N_ORDINARY + 4)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> GgufTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "bos.gguf"
    ordinary = vocabulary.ordinary_tokens()
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*ordinary, "</s>", "<bos>", "<end>", "x" * 300])
    kinds = [TokenType.NORMAL, TokenType.CONTROL, TokenType.CONTROL, TokenType.NORMAL]
    writer.add_token_types([TokenType.NORMAL] * len(ordinary) + kinds)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(True)
    for add in (writer.add_block_count, writer.add_context_length, writer.add_embedding_length):
        add(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))  # a file without tensors is refused
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufTokenizer.from_file(path)


def test_lookalike_is_neither_special_nor_an_end(odd: GgufTokenizer) -> None:
    assert odd.special_ids == {BOS, END}
    assert odd.eos_ids == (END,)
    assert odd._lookalikes == ["</s>"]


def test_lookalike_in_a_text_stays_text(odd: GgufTokenizer) -> None:
    ids = odd.encode("a</s><end>b", add_special=False, parse_special=True)
    assert LOOKALIKE not in ids
    assert b"".join(odd.pieces[token] for token in ids) == b"a</s><end>b"
    assert ids.count(END) == 1


def test_bos_on_demand(odd: GgufTokenizer) -> None:
    assert odd.encode("a", add_special=True, parse_special=True)[0] == BOS
    assert odd.encode("", add_special=True, parse_special=True) == [BOS]
    assert odd.encode("a", add_special=False, parse_special=True)[0] != BOS


def test_text_is_composed_before_it_is_cut(odd: GgufTokenizer) -> None:
    apart = odd.encode("cafe\u0301<end>", add_special=False, parse_special=True)
    assert apart == odd.encode("caf\u00e9<end>", add_special=False, parse_special=True)


def test_a_piece_of_any_length_is_whole(odd: GgufTokenizer) -> None:
    assert odd.pieces[LONG] == b"x" * 300


@pytest.fixture(scope="module")
def real_path() -> Path:
    path = ModelCache.open().path_of(QWEN25_CODER_05B)
    if not path.is_file():
        pytest.skip("the default pair is not in the cache")
    return path


@pytest.mark.real
def test_real_vocabulary(real_path: Path) -> None:
    tokenizer = GgufTokenizer.from_file(real_path)
    started = time.process_time()
    assert len(tokenizer.pieces) == tokenizer.n_tokens == 151_665
    assert time.process_time() - started < 1.0
    assert tokenizer.n_vocab == 151_936
    assert {151_643, 151_645} <= set(tokenizer.eos_ids)
    assert 128_247 not in tokenizer.eos_ids  # "</s>", ordinary text here
    assert all(tokenizer.pieces)
