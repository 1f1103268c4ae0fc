"""Writes tiny checkpoints as GGUF files, with what llama.cpp's converter does to their weights."""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.support.tiny_checkpoints import make_checkpoint

Metadata = dict[str, Any]
Tensors = dict[str, tuple[int, tuple[int, ...], bytes]]
"""By name: ggml's number of the type, the shape in torch's order, the stored bytes."""

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
WORDS = {"llama": "llama-bpe"}
KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
}


def describe(kind: str, folder: Path) -> tuple[Metadata, Tensors]:
    """Make the checkpoint `kind` in `folder`. Returns what its GGUF file holds, in float32."""
    make_checkpoint(kind, folder)
    config = json.loads((folder / "config.json").read_text())
    family = {"gemma3_text": "gemma3", "mistral": "llama"}.get(
        config["model_type"], config["model_type"]
    )
    metadata: Metadata = {"general.architecture": family, "general.name": "Tiny Chat"}
    for ours, key in KEYS.items():
        if config.get(ours) is not None:
            metadata[f"{family}.{key}"] = config[ours]
    rope = config["rope_parameters"]
    metadata[f"{family}.rope.freq_base"] = rope.get("full_attention", rope)["rope_theta"]
    if family == "llama":
        metadata["llama.rope.dimension_count"] = config.get("head_dim") or 32
    else:
        metadata[f"{family}.attention.key_length"] = config.get("head_dim", 32)
    words = "default" if config["model_type"] == "mistral" else WORDS.get(family, "qwen2")
    metadata |= _describe_tokenizer(folder, words)
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if family == "llama" and re.search(r"[qk]_proj\.weight", name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = (
                values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            )
        if family == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        tensors[_rename(name, family)] = (0, values.shape, values.astype("<f4").tobytes())
    return metadata, tensors


def _rename(name: str, family: str) -> str:
    stem, _, kind = name.rpartition(".")
    names = GEMMA_NAMES if family == "gemma3" else NAMES
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    return f"blk.{layer[1]}.{names[layer[2]]}.{kind}" if layer else f"{TOP[stem]}.{kind}"


def _describe_tokenizer(folder: Path, words: str) -> Metadata:
    described = json.loads((folder / "tokenizer.json").read_text())
    names = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["content"]: token for token in described["added_tokens"]}
    vocab = described["model"]["vocab"] | {name: token["id"] for name, token in added.items()}
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = [f"[PAD{i}]" for i in range(size)]  # as llama.cpp fills it up
    types = [5] * size
    for token, i in vocab.items():
        tokens[i] = token
        types[i] = (3 if added[token]["special"] else 4) if token in added else 1
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": words,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["model"]["merges"]],
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    if words == "default":  # SentencePiece: scores of tokens stand for merges
        merges = ["".join(pair) for pair in described["model"]["merges"]]
        ranks = {token: -float(i) for i, token in reversed([*enumerate(merges)])}
        metadata |= {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [ranks.get(token, -1e6) for token in tokens],
        }
        del metadata["tokenizer.ggml.merges"]
    ids = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    for ours, theirs in ids.items():
        if names.get(ours) is not None:
            metadata[f"tokenizer.ggml.{theirs}_token_id"] = vocab[names[ours]]
    return metadata


def write_gguf(file: Path, metadata: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a file of version 3. Returns its path. Ref: ggml's specification of GGUF."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, data = _pack(value)
        head += [_pack_text(key), struct.pack("<I", kind), data]
    at, stored = 0, []
    for name, (kind, shape, data) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += [_pack_text(name), dims, struct.pack("<IQ", kind, at)]
        stored.append(data + bytes(-len(data) % 32))
        at += len(stored[-1])
    start = b"".join(head)
    file.write_bytes(start + bytes(-len(start) % 32) + b"".join(stored))
    return file


def _pack(value: Any) -> tuple[int, bytes]:
    """The number of a value's type, and the value."""
    if isinstance(value, str):
        return 8, _pack_text(value)
    if isinstance(value, list):
        kind = _pack(value[0])[0]
        return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_pack(v)[1] for v in value)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    return (
        (6, struct.pack("<f", value)) if isinstance(value, float) else (4, struct.pack("<I", value))
    )


def _pack_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pack_floats(values: np.ndarray) -> tuple[int, tuple[int, ...], bytes]:
    return 0, values.shape, values.astype("<f4").tobytes()
