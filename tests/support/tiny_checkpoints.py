"""Tiny random checkpoints of each architecture, with real tokenizers, in Hugging Face format.

They are seeded and have two layers, a hidden size of 64 and heads of 32, some 100 KB each. The
weights have a spread at which scores and next tokens depend visibly on the text.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    Gemma3TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedTextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

POSITIONS = 512
WIDTH = 64
SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.25,
    "dtype": "float32",
}
CORPUS = [
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning.",
    "Step 1: Janet's ducks lay 16 eggs per day. ки\nStep 2: She eats 3, so 16 - 3 = 13. ки\n",
    "To find the sum, we add the numbers.\n\nSo 12 + 30 = 42.\n\nThe answer is: \\boxed{42}",
    "First, compute 3 * 4 = 12.\nThen 12 / 2 = 6.\n\nTherefore, the answer is 6. + -",
    "system\nYou are a helpful assistant. user\n How many apples are left? assistant\n + - + -",
    "One step. \n\n\n\nTwo. \n\n\n\n\n Three. \n\nIs the answer correct (Yes/No)? Yes No\nYes\nNo",
] * 8
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = {"qwen": _QWEN_WORDS, "llama": _QWEN_WORDS.replace(r"+|\p{N}|", r"+|\p{N}{1,3}|")}
"""The patterns by which Qwen2 and Llama 3 split text into words."""
CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
THINKING_CHAT = (  # Qwen3's: an empty thinking in the last answer, and where thinking is off
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{ m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
PHI_CHAT = (
    "{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)
LLAMA_CHAT = (
    "{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role "
    "+ '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL_CHAT = (
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{- ' ' + m.content + eos_token }}{%- else %}"
    "{{- '[INST] ' + m.content + ' [/INST]' }}{%- endif %}{%- endfor %}"
)


# ---------------------------------------------------------------- tokenizers


def _train_byte_level(words: str, specials: list[str], **names: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as of Qwen2 and Llama 3. names: bos_token, eos_token, chat_template, …"""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS[words]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
    if words == "llama":  # encode() begins with BOS
        _begin_with(tokenizer, names["bos_token"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _train_sentencepiece(**names: Any) -> PreTrainedTokenizerFast:
    """SentencePiece BPE, as converted from Llama's and Mistral's tokenizers.

    It puts a space before any text, writes spaces as ▁, and encodes what is not in the vocabulary
    as bytes (a newline is <0x0A>).
    """
    base = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=base, show_progress=False, initial_alphabet=list("+-ки")
    )
    lines = [line for text in CORPUS for line in text.split("\n")]
    learner.train_from_iterator(lines, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(m) for m in learned["merges"]]
    unknown = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(vocab=learned["vocab"], merges=merges, **unknown))
    to_marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(to_marks)
    to_text = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in base[:3]])
    _begin_with(tokenizer, "<s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **names
    )


def _begin_with(tokenizer: Tokenizer, bos: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _train_qwen(*more: str, **names: Any) -> PreTrainedTokenizerFast:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *more]
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **names}
    return _train_byte_level("qwen", specials, **{"chat_template": CHATML, **names})


def _train_qwen3() -> PreTrainedTokenizerFast:
    tokenizer = _train_qwen(chat_template=THINKING_CHAT)
    plain = [AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")]
    tokenizer.add_tokens(plain)
    return tokenizer


def _train_phi() -> PreTrainedTokenizerFast:
    specials = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    names = {"eos_token": "<|end|>", "pad_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    return _train_byte_level("qwen", specials, chat_template=PHI_CHAT, **names)


def _train_llama(**names: Any) -> PreTrainedTokenizerFast:
    bos, eot = "<|begin_of_text|>", "<|eot_id|>"
    specials = [bos, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", eot]
    return _train_byte_level(
        "llama", specials, bos_token=bos, eos_token=eot, chat_template=LLAMA_CHAT, **names
    )


# ---------------------------------------------------------------- models

State = dict[str, torch.Tensor]


def _add_value_head(state: State) -> State:
    """Skywork: a value head beside the causal model's own weights."""
    state["v_head.summary.weight"] = torch.randn(1, WIDTH) / WIDTH**0.5
    state["v_head.summary.bias"] = torch.randn(1) / 4
    return state


def _to_two_classes(state: State) -> State:
    del state["lm_head.weight"]
    for layer, rows in ((0, WIDTH), (2, 2)):
        state[f"score.{layer}.weight"] = torch.randn(rows, WIDTH) * (2 / WIDTH) ** 0.5
        state[f"score.{layer}.bias"] = torch.randn(rows) / 4
    return state


def _to_score(state: State) -> State:
    del state["lm_head.weight"]
    state["score.weight"] = torch.randn(1, WIDTH) * 2 / WIDTH**0.5
    return state


CONFIGS = {
    "Qwen2": Qwen2Config,
    "Qwen3": Qwen3Config,
    "Llama": LlamaConfig,
    "Mistral": MistralConfig,
    "Phi3": Phi3Config,
    "Gemma3": Gemma3TextConfig,
    "Qwen3Moe": Qwen3MoeConfig,
    "GptOss": GptOssConfig,
    "Gemma4Unified": Gemma4UnifiedTextConfig,
    "Qwen3_5": Qwen3_5TextConfig,
    "Qwen3_5Moe": Qwen3_5MoeTextConfig,
}
"""The config class of a body, by the beginning of the architecture's name."""


@dataclass(frozen=True)
class Kind:
    architecture: str
    """The name in config.json."""
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    head: Callable[[State], State] = lambda state: state
    """Converts the causal model's weights to those of the checkpoint."""
    tied: bool = False
    """Whether the checkpoint has no lm_head of its own."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    eyes: tuple[Any, Mapping[str, Any]] | None = None
    """The config class of the whole model and the figures of what sees, where it does."""


QWEN3 = {"head_dim": 32}  # Qwen 3 does not derive it from the hidden size
PRM = "Qwen2ForProcessRewardModel"
JUDGE3, JUDGE = "Qwen3ForSequenceClassification", "LlamaForSequenceClassification"
QWEN3_LM = Kind("Qwen3ForCausalLM", _train_qwen3, tied=True, shape=QWEN3)

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN35: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 4,  # three with a state, and one with KV
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,  # vLLM's kernel for a CPU takes no other
    "linear_value_head_dim": 128,
    "dtype": "bfloat16",
}
EYES = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
EYES35 = {**EYES, "out_hidden_size": WIDTH, "num_position_embeddings": 16}

KINDS = {
    "qwen_prm": Kind(PRM, lambda: _train_qwen("<extra_0>"), _to_two_classes),
    "reasonflux": Kind(
        PRM, lambda: _train_qwen("<extra_0>", "<think>", "</think>"), _to_two_classes
    ),
    "sequence_classification": Kind(
        JUDGE3, _train_qwen3, _to_score, shape={**QWEN3, "num_labels": 1}
    ),
    "llama_classification": Kind(
        JUDGE, lambda: _train_llama(pad_token="<|eot_id|>"), _to_score, shape={"num_labels": 1}
    ),
    "yes_no": QWEN3_LM,
    "skywork": Kind(
        "Qwen2ForPrmModel", lambda: _train_qwen(bos_token="<|endoftext|>"), _add_value_head, True
    ),
    "step_tag": Kind("MistralForCausalLM", _train_sentencepiece),
    "rlhflow": Kind("LlamaForCausalLM", _train_llama),
    "qwen_generator": Kind("Qwen2ForCausalLM", _train_qwen, tied=True),
    "qwen3_generator": QWEN3_LM,
    "phi3_generator": Kind("Phi3ForCausalLM", _train_phi, tied=True),
    "gemma3_generator": Kind(
        "Gemma3ForCausalLM", _train_qwen, tied=True, shape={"head_dim": 256, "sliding_window": 16}
    ),
    "qwen3_moe_generator": Kind("Qwen3MoeForCausalLM", _train_qwen3, shape={**QWEN3, **MOE}),
    "gpt_oss_generator": Kind(
        "GptOssForCausalLM",
        _train_qwen3,
        shape={**QWEN3, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    ),
    "gemma4_generator": Kind(
        "Gemma4UnifiedForConditionalGeneration",
        _train_qwen3,
        tied=True,
        shape={
            "num_hidden_layers": 6,  # five with a window
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 16,
        },
        eyes=(
            Gemma4UnifiedConfig,
            {
                "mm_embed_dim": WIDTH,
                "output_proj_dims": WIDTH,
                "patch_size": 4,
                "mm_posemb_size": 16,
            },
        ),
    ),
    "qwen35_generator": Kind(
        "Qwen3_5ForConditionalGeneration", _train_qwen3, shape=QWEN35, eyes=(Qwen3_5Config, EYES35)
    ),
    "qwen35_moe_generator": Kind(
        "Qwen3_5MoeForConditionalGeneration",
        _train_qwen3,
        shape={**QWEN35, **MOE, "shared_expert_intermediate_size": 32},
        eyes=(Qwen3_5MoeConfig, EYES35),
    ),
    "llama_generator": Kind("LlamaForCausalLM", _train_llama),
    "mistral_generator": Kind(
        "MistralForCausalLM", lambda: _train_sentencepiece(chat_template=MISTRAL_CHAT)
    ),
}


def make_checkpoint(kind: str, folder: Path) -> Path:
    """Write the checkpoint of `KINDS[kind]` into `folder`, which is created if missing.

    The same kind gives the same files. Returns the folder.
    """
    spec = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = spec.tokenizer()
    tokenizer.save_pretrained(folder)
    config = CONFIGS[spec.architecture.partition("For")[0]](
        **{**SHAPE, **spec.shape},
        vocab_size=-(-len(tokenizer) // 32) * 32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=spec.tied,
        architectures=[spec.architecture],
    )
    if spec.eyes is not None:
        whole, eyes = spec.eyes
        config = whole(text_config=config.to_dict(), vision_config=dict(eyes))
        config.tie_word_embeddings = spec.tied
    loader = AutoModelForMultimodalLM if spec.eyes else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(f"{kind} 0".encode()))
        model = loader.from_config(config)
        state = {
            name: torch.nn.init.uniform_(value.clone(), 0.8, 1.2) if "norm" in name else value
            for name, value in model.state_dict().items()
            if not (spec.tied and name.startswith("lm_head."))
        }
        state = spec.head(state)
    if spec.eyes is not None:  # its tensors have other names in files
        model.load_state_dict(state, strict=False)
        model.save_pretrained(folder)
        return folder
    config.architectures = [spec.architecture]  # from_config names its own
    config.save_pretrained(folder)
    if spec.architecture.endswith("ForCausalLM"):
        model.generation_config.save_pretrained(folder)
    weights = {name: value.detach().clone().contiguous() for name, value in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
