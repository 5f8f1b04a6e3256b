import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftwire_cloud.engine.vocabulary import byte_alphabet, is_byte_level, special_ids, token_pieces
from tiny import make_tiny_pair

FolderOf = Callable[..., Path]


def llama_pieces(gguf: Path, n: int) -> list[bytes]:
    """What llama.cpp says of ids 0 .. n - 1."""
    llama_cpp = pytest.importorskip("llama_cpp")
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), params)
    vocab, buffer = llama_cpp.llama_model_get_vocab(model), ctypes.create_string_buffer(1024)
    pieces = []
    for token in range(n):
        size = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, True)
        pieces.append(buffer.raw[:size])
    llama_cpp.llama_model_free(model)
    return pieces


def test_pieces_are_what_llama_cpp_says(tmp_path: Path) -> None:
    pair = make_tiny_pair(tmp_path, noise=[0.0])
    tokenizer = AutoTokenizer.from_pretrained(pair.target_folder)
    pieces = token_pieces(tokenizer)
    assert pieces == llama_pieces(pair.drafters["perfect"], len(tokenizer))
    assert {bytes([byte]) for byte in range(256)} <= set(pieces)


def test_pieces_join_to_the_text(folder_of: FolderOf) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("llama"))
    pieces, text = token_pieces(tokenizer), "naïve 中文 🙂\n\ttabs  and  spaces"
    assert is_byte_level(tokenizer)
    assert b"".join(pieces[token] for token in tokenizer.encode(text)).decode() == text


def test_special_ids_are_the_control_tokens(folder_of: FolderOf) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder_of("llama"))
    found = special_ids(tokenizer)
    assert found == sorted(found)
    assert tokenizer.eos_token_id in found
    assert token_pieces(tokenizer)[tokenizer.eos_token_id].decode() == tokenizer.eos_token


def sentence_piece_tokenizer() -> Any:
    """Spelled as Llama 2's: marked spaces, bytes for what is not in the vocabulary."""
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581a", "b", "é"]
    vocabulary = {name: token for token, name in enumerate(names)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    backend.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback()]
    )
    backend.add_special_tokens(["<s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="<unk>")


def test_sentence_piece_names_are_bytes_or_text_with_marked_spaces() -> None:
    tokenizer = sentence_piece_tokenizer()
    pieces = token_pieces(tokenizer)
    assert not is_byte_level(tokenizer)
    assert len(pieces) == len(tokenizer)
    assert pieces[:2] == [b"<unk>", b"<s>"]
    assert pieces[2:258] == [bytes([byte]) for byte in range(256)]
    assert pieces[258:262] == [b" ", b" a", b"b", "é".encode()]
    assert 1 in special_ids(tokenizer)


def test_the_byte_alphabet_is_a_bijection() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["a"] == 97
    assert alphabet["\u0120"] == 32  # GPT-2 spells a space as a dotted capital G


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="slow tokenizer"):
        is_byte_level(object())
