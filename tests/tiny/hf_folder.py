"""Write the tiny model as a Hugging Face folder, as plain JSON and safetensors, without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tiny import vocabulary
from tiny.config import TinyConfig
from tiny.weights import Weights

Json = dict[str, Any]


def write_hf_folder(folder: Path, config: TinyConfig, weights: Weights) -> None:
    """Write everything AutoModelForCausalLM and AutoTokenizer need into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model_config(config))
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, config.context_length)


def write_tokenizer(folder: Path, context_length: int) -> None:
    """Write the tokeniser and the generation config; shared by every architecture."""
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "tokenizer_config.json", tokenizer_config(context_length))
    write_json(folder / "generation_config.json", generation_config())


def write_json(path: Path, content: Json) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def model_config(config: TinyConfig) -> Json:
    """Return config.json; `vocab_size` includes the padding."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head_kv,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.target_rows,
        "dtype": "float32",
    } | special_ids()


def special_ids() -> Json:
    """Return the ids a config.json names; there is no bos."""
    return {"bos_token_id": None, "eos_token_id": vocabulary.IM_END_ID, "pad_token_id": vocabulary.PAD_ID}


def generation_config() -> Json:
    """Return generation_config.json, with every end-of-generation id."""
    return {"eos_token_id": list(vocabulary.EOS_IDS), "pad_token_id": vocabulary.PAD_ID, "do_sample": False}


def tokenizer_json() -> Json:
    """Return tokenizer.json: Qwen's split, then byte-level pairs, no normaliser."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {
        "type": "Split",
        "pattern": {"Regex": vocabulary.SPLIT_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token} | _added_token(text) for token, text in _specials()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": _bpe(),
    }


def _bpe() -> Json:
    """Return the byte-pair model of tokenizer.json."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {text: token for token, text in enumerate(vocabulary.ordinary_tokens())},
        "merges": [list(pair) for pair in vocabulary.MERGES],
    }


def tokenizer_config(context_length: int) -> Json:
    """Return tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(token): _added_token(text) for token, text in _specials()},
        "bos_token": None,
        "eos_token": vocabulary.IM_END,
        "pad_token": vocabulary.END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "chat_template": vocabulary.CHAT_TEMPLATE,
    }


def _specials() -> list[tuple[int, str]]:
    """Return id and text of the specials."""
    return list(enumerate(vocabulary.SPECIALS, start=vocabulary.N_ORDINARY))


def _added_token(text: str) -> Json:
    """Return how a special is recognised in text."""
    return {
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
