"""Write the tiny model as a GGUF file that llama.cpp reads exactly as transformers reads the folder."""

from collections.abc import Sequence
from pathlib import Path

from gguf import GGUFWriter, LlamaFileType, TokenType

from tiny import vocabulary
from tiny.config import TinyConfig
from tiny.weights import Array, Weights

_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
#: Tensors with a row for each id.
_BY_ID = {"model.embed_tokens.weight", "lm_head.weight"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    config: TinyConfig,
    weights: Weights,
    name: str = "draftwire-tiny",
    order: Sequence[int] | None = None,
) -> None:
    """Write tokeniser, sizes and float32 tensors to `path`.

    `order` makes another vocabulary of it: the pair's ids that it has, in its own order.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    _add_sizes(writer, config)
    n_rows = weights["lm_head.weight"].shape[0] if order is None else len(order)
    _add_tokenizer(writer, n_rows, range(vocabulary.N_TOKENS) if order is None else order)
    for hf_name, tensor in weights.items():
        own = tensor if order is None or hf_name not in _BY_ID else tensor[list(order)]
        writer.add_tensor(gguf_name(hf_name), _for_llama_cpp(hf_name, own, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: GGUFWriter, config: TinyConfig) -> None:
    """Write the hyperparameters."""
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)


def _add_tokenizer(writer: GGUFWriter, n_rows: int, order: Sequence[int]) -> None:
    """Write the vocabulary; rows beyond the tokeniser become unused `[PADn]` ids, as converters do it."""
    pads = [f"[PAD{token}]" for token in range(len(order), n_rows)]
    everything = [*vocabulary.ordinary_tokens(), *vocabulary.SPECIALS]
    tokens = [*(everything[token] for token in order), *pads]
    kinds = [TokenType.NORMAL] * vocabulary.N_ORDINARY + [TokenType.CONTROL] * len(vocabulary.SPECIALS)
    types = [*(kinds[token] for token in order), *[TokenType.UNUSED] * len(pads)]
    own_id = {token: place for place, token in enumerate(order)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_vocab_size(n_rows)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [f"{left} {right}" for left, right in vocabulary.MERGES if left + right in tokens]
    )
    writer.add_eos_token_id(own_id[vocabulary.IM_END_ID])
    writer.add_eot_token_id(own_id[vocabulary.IM_END_ID])
    writer.add_pad_token_id(own_id[vocabulary.PAD_ID])
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


def gguf_name(hf_name: str) -> str:
    """Translate a Hugging Face tensor name into llama.cpp's."""
    if hf_name in _TOP_NAMES:
        return _TOP_NAMES[hf_name]
    layer, _, part = hf_name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def _for_llama_cpp(hf_name: str, tensor: Array, config: TinyConfig) -> Array:
    """Return the tensor as llama.cpp wants it: only Q and K differ."""
    if hf_name.endswith("q_proj.weight"):
        return permute_rope(tensor, config.n_head)
    if hf_name.endswith("k_proj.weight"):
        return permute_rope(tensor, config.n_head_kv)
    return tensor


def permute_rope(tensor: Array, n_head: int) -> Array:
    """Reorder the rows of each head of [n_head * head_dim, n_embd].

    Rope pairs row i with row i + head_dim / 2 in transformers, and rows 2i and 2i + 1 in llama.cpp.
    """
    rows, columns = tensor.shape
    halves = tensor.reshape(n_head, 2, rows // n_head // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
