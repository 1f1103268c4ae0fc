"""Turns a GGUF file, as Ollama and LM Studio keep models, into a folder that the engines load.

transformers opens the file, unpacks its blocks of quantized weights and builds its tokenizer. Ours
is what it does only with the packages gguf and accelerate, which vLLM does not bring, and what it
does not read: the tensors' names by family, blocks of five bits, the scaling of Llama 3's
positions, and some of what a tokenizer does beside its vocabulary. All is checked before anything
is written, and the weights are converted some rows at a time, so that a model may be larger than
the memory.

Ref: ggml's specification of GGUF; llama.cpp's convert_hf_to_gguf.py, whose changes are undone here,
and llama-vocab.cpp.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast
from transformers.integrations import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import dequant, reader
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    convert_gguf_tokenizer,
    get_gguf_tokenizer,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from flashedge.errors import CheckpointError

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of a layer's tensors: llama.cpp's, and transformers'."""
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FAMILIES = {"gemma3": _GEMMA_LAYER, "llama": _LAYER, "qwen2": _LAYER, "qwen3": _LAYER}
"""The names by llama.cpp's architecture. Models of Mistral and SmolLM2 call themselves llama."""
_OPTIONAL = ("head_dim", "num_key_value_heads", "rope_theta", "sliding_window", "vocab_size")
_ROTARY_SCALING = "rope_freqs.weight"
_LLAMA3_WORDS = ("llama3", "llama-v3", "llama-bpe")
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<|end|>", "</s>"),
)
"""Tokens that end an answer. A file names one of them; Ollama ends at all of its vocabulary's."""
_PART_WEIGHTS = 1 << 22
"""About how many weights are unpacked at once, which takes some 100 MB."""
_AGAIN = "download it again, or choose another file"
_FROM_HUB = "serve the model's own checkpoint instead: give its Hugging Face id in models.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A checked GGUF file."""

    file: Path
    metadata: Mapping[str, Any]
    config: Any
    """transformers' configuration of the model."""
    tokenizer: Any
    tensors: Mapping[str, reader.TensorInfo]
    """By the names that they have in the folder."""
    data_start: int

    @property
    def size_bytes(self) -> int:
        """Size of the weights in bfloat16."""
        return sum(2 * prod(tensor.shape) for tensor in self.tensors.values())

    def write(self, folder: Path, report: Callable[[int], None] = lambda count: None) -> None:
        """Write the model's folder, which must exist. report: called with 1 after each tensor."""
        self.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        added = self.tokenizer.added_tokens_decoder.items()
        known = (self.tokenizer.eos_token, *_ENDS)
        GenerationConfig(
            bos_token_id=self.tokenizer.bos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=[id_ for id_, token in added if token.special and str(token) in known],
        ).save_pretrained(folder)
        self._write_weights(folder / "model.safetensors", report)

    def _write_weights(self, file: Path, report: Callable[[int], None]) -> None:
        """Write a safetensors file: the length of the header, the header, then all tensors."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, tensor in self.tensors.items():
            place = [end, end := end + 2 * prod(tensor.shape)]
            header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": place}
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with file.open("wb") as out:
            out.write(len(head).to_bytes(8, "little") + head)
            for name in self.tensors:
                for part in self._read(name):
                    out.write(part.view(torch.uint8).numpy().data)
                report(1)

    def _read(self, name: str) -> Iterator[torch.Tensor]:
        """Read some rows of a tensor at a time, unpacked, in bfloat16."""
        tensor = self.tensors[name]
        rows = _open_rows(self.file, self.data_start, tensor)
        order = self._order_rows(name, len(rows))
        step = max(1, _PART_WEIGHTS * len(rows) // prod(tensor.shape))
        is_gemma_norm = self.config.model_type == "gemma3_text" and name.endswith("norm.weight")
        added = 1.0 if is_gemma_norm else 0.0  # by llama.cpp
        for start in range(0, len(rows), step):
            packed = torch.from_numpy(rows[order[start : start + step]])
            yield (_unpack(packed, tensor.ggml_type) - added).to(torch.bfloat16)

    def _order_rows(self, name: str, count: int) -> np.ndarray:
        """Which of the stored rows comes when. Of llama's queries and keys, llama.cpp stores a
        head's dimensions that rotate together side by side, transformers half a head apart."""
        order, config = np.arange(count), self.config
        is_query = name.endswith("q_proj.weight")
        if config.model_type != "llama" or not (is_query or name.endswith("k_proj.weight")):
            return order
        heads = config.num_attention_heads if is_query else config.num_key_value_heads
        return order.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def open_gguf(file: Path, chat_template: str | None = None) -> GgufModel:
    """Read what a file says of its model, and check it. chat_template: in place of the file's own.
    Raises CheckpointError at the first thing that is wrong or not supported."""
    _add_five_bits()
    with _refuse_damage(file):
        if not file.is_file():
            raise CheckpointError(f"there is no file {file}")
        metadata, names = reader.read_gguf_metadata(str(file))
        if chat_template is not None:
            metadata = {**metadata, "tokenizer.chat_template": chat_template}
        _check_kind(file, metadata, names)
        header = reader.GgufHeader.from_file(str(file))
        start = header.data_start
        end = max(start + tensor.offset + tensor.nbytes for tensor in header.tensors)
        if end > (size := file.stat().st_size):
            told = f"{file} is cut short: it has {size} bytes of {end}"
            raise CheckpointError(told, hint=_AGAIN)
        stored = {tensor.name: tensor for tensor in header.tensors}
        config = _build_config(file, metadata, stored)
        if (scaling := stored.pop(_ROTARY_SCALING, None)) is not None:
            rows = _open_rows(file, start, scaling).copy()
            _scale_positions(file, config, _unpack(torch.from_numpy(rows), scaling.ggml_type))
        tensors = _match_tensors(file, config, FAMILIES[metadata["general.architecture"]], stored)
        return GgufModel(
            file=file,
            metadata=metadata,
            config=config,
            tokenizer=_build_tokenizer(file, metadata),
            tensors=tensors,
            data_start=start,
        )


@contextmanager
def _refuse_damage(file: Path) -> Iterator[None]:
    """Raises CheckpointError where transformers can't read the file. A ValueError says why."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"can't read {file}: {error.strerror}") from error
    except Exception as error:  # a damaged number can lead to any, deep in transformers and torch
        is_said = type(error) is ValueError and str(file) in str(error)
        told = str(error) if is_said else f"{file} is damaged: {type(error).__name__}: {error}"
        raise CheckpointError(told, hint=_AGAIN) from error


def _check_kind(file: Path, metadata: Mapping[str, Any], tensors: tuple[str, ...]) -> None:
    """Raises CheckpointError unless the file holds a whole model of text that can chat."""
    name, kind = metadata["general.architecture"], metadata.get("general.type", "model")
    if metadata.get("split.count", 1) > 1 or re.search(r"-\d{5}-of-\d{5}\.gguf$", file.name):
        raise CheckpointError(
            f"{file} is one part of a split model",
            hint="join the parts: llama-gguf-split --merge FIRST_PART.gguf WHOLE.gguf",
        )
    sees = any(tensor.startswith(("v.", "mm.")) for tensor in tensors)
    if sees or kind == "mmproj" or name == "clip" or "vl" in name:
        raise CheckpointError(
            f"{file} holds a vision model, or a part of one; FlashEdge serves text alone",
            hint="choose the file of a text model",
        )
    if kind != "model":
        raise CheckpointError(f"{file} holds no whole model: its type is {kind!r}")
    if name not in FAMILIES or metadata.get(f"{name}.expert_count"):
        what = f"{name} with experts" if name in FAMILIES else name
        raise CheckpointError(
            f"{file}: FlashEdge can't import the architecture {what}; known: {', '.join(FAMILIES)}",
            hint=_FROM_HUB,
        )
    if not isinstance(metadata.get("tokenizer.chat_template"), str):
        raise CheckpointError(
            f"{file} has no chat template, as a base model has none, which can't answer",
            hint="choose the file of a chat model, or give its template: --chat-template FILE",
        )


def _build_config(
    file: Path, metadata: Mapping[str, Any], stored: Mapping[str, reader.TensorInfo]
) -> Any:
    """transformers' configuration, by its own table of llama.cpp's keys."""
    name = metadata["general.architecture"]
    names = {f"{name}.{key}": ours for key, ours in GGUF_CONFIG_MAPPING[name].items() if ours}
    names[f"{name}.attention.key_length"] = "head_dim"  # also of Qwen3, which the table forgets
    found = {
        ours: metadata[key]
        for key, ours in names.items()
        if key in metadata or ours not in _OPTIONAL
    }
    if wrong := [key for key, value in found.items() if not isinstance(value, int | float)]:
        raise CheckpointError(f"{file}: its {wrong[0]} is not one number", hint=_FROM_HUB)
    layers = {name.split(".")[1] for name in stored if name.startswith("blk.")}
    if len(layers) != found["num_hidden_layers"]:  # a damaged number could take all memory below
        told = f"it has {len(layers)} layers of {found['num_hidden_layers']}"
        raise CheckpointError(f"{file} is damaged: {told}", hint=_AGAIN)
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    found.setdefault("rope_theta", 10_000.0)
    found["vocab_size"] = stored["token_embd.weight"].shape[0]
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    if scaling == "linear":
        factor = metadata[f"{name}.rope.scaling.factor"]
        found["rope_scaling"] = {"rope_type": scaling, "factor": factor}
    elif scaling != "none":
        raise CheckpointError(
            f"{file}: FlashEdge can't import the scaling of positions {scaling!r}", hint=_FROM_HUB
        )
    if name == "gemma3":  # llama.cpp's rule: the 27B has 62 layers and a scale of its own
        width, heads = found["hidden_size"], found["num_attention_heads"]
        is_27b = found["num_hidden_layers"] == 62
        found["query_pre_attn_scalar"] = width // heads if is_27b else found["head_dim"]
    ids = {f"{end}_token_id": f"tokenizer.ggml.{end}_token_id" for end in ("bos", "eos")}
    return AutoConfig.for_model(
        "gemma3_text" if name == "gemma3" else name,
        **found,
        **{ours: metadata.get(key) for ours, key in ids.items()},
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings="output.weight" not in stored,
        dtype="bfloat16",
    )


def _scale_positions(file: Path, config: Any, divisors: torch.Tensor) -> None:
    """Find the parameters of Llama 3's scaling by the divisors of frequencies that it led to. All
    of its models share the others. Raises CheckpointError when these give other frequencies."""
    plain = config.rope_parameters["rope_theta"] ** -(
        torch.arange(divisors.numel()) / divisors.numel()
    )
    config.rope_parameters |= {
        "rope_type": "llama3",
        "factor": divisors.max().item(),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    if not torch.allclose(plain / divisors.flatten(), scaled, rtol=1e-3, atol=0.0):
        raise CheckpointError(
            f"{file}: its {_ROTARY_SCALING} is not the scaling of Llama 3", hint=_FROM_HUB
        )


def _match_tensors(
    file: Path, config: Any, names: Mapping[str, str], stored: Mapping[str, reader.TensorInfo]
) -> Mapping[str, reader.TensorInfo]:
    """Give the tensors transformers' names. Raises CheckpointError unless they are those of the
    model that `config` describes. names: those of a layer's tensors."""
    found = {}
    for tensor in stored.values():
        name, _, kind = tensor.name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", name)
        known = names.get(layer[2]) if layer else _OUTSIDE.get(name)
        if known is None:
            raise CheckpointError(
                f"{file}: FlashEdge does not know the tensor {tensor.name} in a model of the"
                f" architecture {config.model_type}",
                hint=_FROM_HUB,
            )
        found[f"model.layers.{layer[1]}.{known}.{kind}" if layer else f"{known}.{kind}"] = tensor
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del wanted["lm_head.weight"]
    shapes = {name: tensor.shape for name, tensor in found.items()}
    if wrong := sorted(name for name, _ in wanted.items() ^ shapes.items()):
        raise CheckpointError(
            f"{file} is damaged: {wrong[0]} is missing, or not what the file says elsewhere",
            hint=_AGAIN,
        )
    return found


# ---------------------------------------------------------------- weights


def _open_rows(file: Path, data_start: int, tensor: reader.TensorInfo) -> np.ndarray:
    """The bytes of a tensor's rows as they are stored: (rows, bytes of a row). None is read yet."""
    data = np.memmap(file, np.uint8, "r", offset=data_start + tensor.offset, shape=tensor.nbytes)
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    return np.asarray(data).reshape(rows, -1)


def _unpack(packed: torch.Tensor, ggml_type: int) -> Any:
    """Unpack the bytes of whole rows to float32."""
    plain = reader._TORCH_DTYPE.get(ggml_type)
    if plain is not None:
        return packed.view(plain).float()
    return dequant.dequantize(packed.reshape(-1), ggml_type)


def _add_five_bits() -> None:
    """Add Q5_0 and Q5_1 to transformers' tables of block types. llama.cpp uses them where a row is
    no multiple of 256, as in Gemma 3 270M."""

    def join(blocks: torch.Tensor) -> torch.Tensor:
        """(blocks, 4 bytes of fifth bits + 16 bytes of two values each) -> (blocks, 32)."""
        high, low = blocks[:, :4, None] >> torch.arange(8, dtype=torch.uint8) & 1, blocks[:, 4:]
        return torch.cat([low & 15, low >> 4], 1) | high.reshape(-1, 32) << 4

    def unpack_q5_0(blocks: torch.Tensor, dtype: torch.dtype) -> Any:
        return dequant._half(blocks, 0, dtype) * (join(blocks[:, 2:]).to(torch.int8) - 16)

    def unpack_q5_1(blocks: torch.Tensor, dtype: torch.dtype) -> Any:
        scale, least = (dequant._half(blocks, at, dtype) for at in (0, 2))
        return scale * join(blocks[:, 4:]) + least

    for kind, size, unpack in ((6, 22, unpack_q5_0), (7, 24, unpack_q5_1)):
        dequant.GGML_BLOCK.setdefault(kind, (32, size))
        dequant._DEQUANT.setdefault(kind, unpack)


# ---------------------------------------------------------------- tokenizer


def _build_tokenizer(file: Path, metadata: Mapping[str, Any]) -> Any:
    """Build the tokenizer. Raises CheckpointError when the file's way to split words is unknown:
    transformers would take GPT-2's without a word, and split numbers and words wrongly."""
    model, words = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    is_known = words in GGUF_PRE_TOKENIZER_SPLITS or words in ("smollm", "gpt-2")
    if not (model == "llama" or (model == "gpt2" and is_known)):
        raise CheckpointError(
            f"{file}: FlashEdge can't import the tokenizer {model!r} with the words of {words!r}",
            hint=_FROM_HUB,
        )
    architecture, described, names = get_gguf_tokenizer(str(file))
    tokenizer, _ = convert_gguf_tokenizer(architecture, described)
    whole = json.loads(tokenizer.to_str())
    # GPT-2's end of text, which transformers adds to any vocabulary of bytes
    added, count = whole["added_tokens"], metadata["tokenizer.ggml.tokens"]
    whole["added_tokens"] = [token for token in added if token["id"] < count]
    if architecture == "gemma3":  # runs of spaces, of which the longest goes first
        whole["model"]["merges"].sort(key=lambda pair: -_count_spaces("".join(pair)))
    if words in (*_LLAMA3_WORDS, "tekken"):
        whole["model"]["ignore_merges"] = True  # a word of the vocabulary is one token
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    if words == "smollm":
        by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes])
    if (architecture, model) == ("llama", "llama"):  # a space before any text, as Llama 2 has
        begin = [normalizers.Prepend("▁")]
        begin = begin if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
        tokenizer.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    if words == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    usual = model == "llama" or words in _LLAMA3_WORDS
    begins = metadata.get("tokenizer.ggml.add_bos_token", usual)
    if begins and (bos := names["bos_token"]) is not None:
        id_ = metadata["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, id_)]
        )
    names = {**names, "chat_template": metadata["tokenizer.chat_template"]}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )


def _count_spaces(token: str) -> int:
    """The length of a token of spaces, as SentencePiece writes them, else 0."""
    return 0 if token.strip("▁") else len(token)
