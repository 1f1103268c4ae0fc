"""What models.toml says about a model and about a pair, and what is known of verifiers' families.
The modules of `engine/vllm/prm/` write a path as the tokens that a family expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.models.shape import Architecture
from flashedge.types import (
    BLANK_LINE,
    MIN_STEP_TOKENS,
    STEP_ENTROPY,
    STEPS,
    THINK_CLOSE,
    THINK_OPEN,
    Judges,
    Sampling,
    ThinkTags,
)

_CAUSAL = ("MistralForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFamily:
    """What is known of a family without loading an engine."""

    architectures: tuple[str, ...]
    """What config.json of its checkpoints may name."""
    judges: Judges = "steps"
    """"steps": a process reward model. "answers": an outcome reward model. "nothing": none."""
    scores_probability: bool = True
    """Whether a score is the probability that a step or an answer is right. Else it only ranks."""
    scores_pairs: bool = False
    """Whether vLLM's own /score works: it scores any two texts by a classifier with one label."""


NO_VERIFIER = "none"
"""The family, and the name in models.toml, of what stands for no verifier. The entry has the files
of the bundled one, so that plans have a size to count; they are never loaded."""

VERIFIER_FAMILIES: Mapping[str, VerifierFamily] = {
    "qwen_prm": VerifierFamily(architectures=("Qwen2ForProcessRewardModel",)),
    "reasonflux": VerifierFamily(architectures=("Qwen2ForProcessRewardModel",)),
    "skywork": VerifierFamily(
        architectures=("Qwen2ForPrmModel", "Qwen2ForCausalLM", "Qwen2ForRewardModel")
    ),
    "step_tag": VerifierFamily(architectures=_CAUSAL),
    "rlhflow": VerifierFamily(architectures=_CAUSAL),
    "sequence_classification": VerifierFamily(
        architectures=(
            "Qwen3ForSequenceClassification",
            "Qwen2ForSequenceClassification",
            "LlamaForSequenceClassification",
            "MistralForSequenceClassification",
        ),
        judges="answers",
        scores_probability=False,
        scores_pairs=True,
    ),
    "yes_no": VerifierFamily(architectures=_CAUSAL, judges="answers"),
    NO_VERIFIER: VerifierFamily(architectures=("Qwen2ForProcessRewardModel",), judges="nothing"),
}

STORED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a weight of a checkpoint that is not quantized."""
ONLINE_METHODS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block")
"""What vLLM can quantize the weights of a bf16 checkpoint to while it loads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A smaller checkpoint of the same model."""

    source: str
    method: str
    """The method for users, such as "AWQ, 4 bits"."""
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingTags:
    """What is left of the marks around a model's thinking when control tokens are left out."""

    open: str
    close: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What models.toml says about a model."""

    source: str
    """A folder or a Hugging Face id."""
    revision: str | None = None
    dtype: str
    max_model_len: int
    """Most tokens of prompt and path together."""
    weights_bytes: int | None = None
    """Size of the loaded weights, where no files on this machine tell it. None if not known."""
    parameters: int | None = None
    """Number of weights of a quantized model. None means that each is stored in `dtype`."""
    architecture: Architecture | None = None
    """The architecture, where no files on this machine tell it. None if not known."""
    quantization: str | None = None
    """How the engine quantizes the weights when it loads them: one of `ONLINE_METHODS`. A
    checkpoint that is quantized says so in its config.json."""
    license: str | None = None
    """The licence that its model card names, if known."""
    quantized: tuple[Quantized, ...] = ()
    """Checkpoints that can replace this one on a smaller card, largest first."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of a generator's chat template, such as `enable_thinking`."""
    thinking: bool = False
    """Whether a generator can write its thinking before its answer."""
    thinking_tags: ThinkingTags | None = None
    """What it writes around its thinking. None means <think> and </think>."""
    tool_parser: str | None = None
    """vLLM's parser of a generator's tool calls, such as hermes. None means no tools."""
    reasoning_parser: str | None = None
    """vLLM's parser of a generator's thinking, such as qwen3, for requests outside any run."""
    compact_json: bool = False
    """Whether guided JSON has no free whitespace, which a small generator might write endlessly."""

    @property
    def think_tags(self) -> ThinkTags | None:
        """What a generator writes around its thinking. None if it does not think."""
        if not self.thinking:
            return None
        tags = self.thinking_tags
        return (THINK_OPEN, THINK_CLOSE) if tags is None else (tags.open, tags.close)

    @property
    def download_bytes(self) -> int | None:
        """Size of the weights as they are stored: about what is downloaded. None if not known."""
        if self.quantization is not None and self.parameters is not None:
            return STORED_BYTES[self.dtype] * self.parameters
        return self.weights_bytes

    def is_variant_of(self, other: ModelSpec) -> bool:
        """Whether both are the same model, perhaps quantized."""
        names, others = (
            {spec.source, *(smaller.source for smaller in spec.quantized)} for spec in (self, other)
        )
        return not names.isdisjoint(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec(ModelSpec):
    """A process or an outcome reward model."""

    family: str
    variant: str | None = None
    """The published form of the prompt, for the families step_tag and yes_no."""
    step_token: str | None = None
    """The token at whose position the model outputs a step's score."""
    score_at: str | None = None
    """Where a step-tag PRM outputs the score: tag, or before_tag."""
    good_token: str | None = None
    """The label of a good step or a right answer."""
    bad_token: str | None = None
    """The label of a bad step or a wrong answer."""
    system_prompt: str | None = None
    prompt: str | None = None
    """The text that asks a yes_no verifier, with {problem} and {answer}."""

    @property
    def judges(self) -> Judges:
        return VERIFIER_FAMILIES[self.family].judges

    @property
    def scores_pairs(self) -> bool:
        return VERIFIER_FAMILIES[self.family].scores_pairs

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the family that are set."""
        tokens = ("step_token", "score_at", "good_token", "bad_token")
        names = ("variant", *tokens, "system_prompt", "prompt")
        return {n: value for n in names if (value := getattr(self, n)) is not None}

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that the vocabulary must hold."""
        found = (self.step_token, self.good_token, self.bad_token)
        return tuple(t for t in found if t is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec(ModelSpec):
    """A sentence-embedding model that groups open-ended answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSizes:
    """KV sizes that models.toml sets for a pair on any device."""

    generator_kv_bytes: int
    verifier_kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A generator and a verifier that serve together, and the defaults of their runs."""

    name: str
    description: str
    generator: ModelSpec
    verifier: VerifierSpec
    sampling: Sampling
    max_step_tokens: int
    max_path_tokens: int
    step_rule: str = BLANK_LINE
    """Where a step ends: one of STEP_RULES."""
    step_entropy: float = STEP_ENTROPY
    """Entropy in nats above which the rule entropy ends a step."""
    min_step_tokens: int = MIN_STEP_TOKENS
    """Least tokens of a step by the rule entropy."""
    aliases: tuple[str, ...] = ()
    """Further names of the pair, without ':'."""
    auto: bool = False
    """Whether `flashedge up --pair auto` may choose the pair."""
    judge: str = STEPS
    """The part of a path that the verifier sees: one of JUDGED."""
    memory: KvSizes | None = None
    """None plans the KV cache from the memory that the device has free. See `models.memory`."""
    system_prompt: str | None = None
    """The instructions of searches whose conversation begins with none. Plain chat gets none."""
    single_turn: bool = False
    """Whether the generator knows only single problems, so that a chat can't have a second turn."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By strategy, the values of options (`--set`) that a request leaves out."""

    @property
    def has_verifier(self) -> bool:
        return self.verifier.judges != "nothing"

    @property
    def models(self) -> Mapping[str, ModelSpec]:
        """The models that are loaded, by role."""
        models = {"generator": self.generator, "verifier": self.verifier}
        return models if self.has_verifier else {"generator": self.generator}


RESERVED = frozenset(
    [
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "self",
    ]
)
"""Names that mean something else to transformers' `apply_chat_template`."""


def find_fault(variables: object) -> str | None:
    """What is wrong with a template's variables; None for names with texts, numbers, booleans."""
    if not isinstance(variables, Mapping):
        return f"is {variables!r}; it must be a table of names and values"
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            return f"can't set {name!r}"
        if not isinstance(value, str | int | float):
            return f"sets {name} to {value!r}; it must be a text, a number, true or false"
    return None
