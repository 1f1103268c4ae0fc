"""What models.toml says about a model and about a pair of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.types import Sampling

ENGINE_OVERHEAD_BYTES = round(1.2 * 2**30)
"""Memory of an engine process beyond its weights and its KV cache."""

RESERVED_BYTES = 1 << 29
"""Memory of the card that the driver and the display keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The figures of config.json that decide the size of a model's KV cache."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A smaller checkpoint of the same model."""

    source: str
    method: str
    """The quantization method for users, such as "AWQ, 4 bits"."""

    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model."""

    source: str
    """A folder or a Hugging Face id."""

    revision: str | None = None
    dtype: str
    max_model_len: int
    """Most tokens of the prompt and the path together."""

    weights_bytes: int | None = None
    """Bytes of the loaded weights. None until the files are here."""

    architecture: Architecture | None = None
    """None until the files are here."""

    quantized: tuple[Quantized, ...] = ()
    """Checkpoints that can replace this one on a smaller card, largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec(ModelSpec):
    """A process reward model."""

    family: str
    step_token: str | None = None
    """The token at whose position the model outputs a step's score."""

    good_token: str | None = None
    """The label of a good step, in the vocabulary of a step-tag PRM."""

    bad_token: str | None = None
    """The label of a bad step, in the vocabulary of a step-tag PRM."""

    system_prompt: str | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the family that are set."""
        names = ("step_token", "good_token", "bad_token", "system_prompt")
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens that the vocabulary must hold."""
        found = (self.step_token, self.good_token, self.bad_token)
        return tuple(t for t in found if t is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec(ModelSpec):
    """A sentence-embedding model that groups open-ended answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """KV cache sizes of a pair on a card with `total_bytes` of memory."""

    generator_kv_bytes: int
    verifier_kv_bytes: int
    total_bytes: int
    fits: bool = True
    """Whether weights and KV cache fit the card together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A generator and a verifier that serve together, and the defaults of their runs."""

    name: str
    description: str
    generator: ModelSpec
    verifier: VerifierSpec
    memory: MemoryPlan
    sampling: Sampling
    max_step_tokens: int
    max_path_tokens: int
    system_prompt: str | None = None
    single_turn: bool = False
    """Whether the generator knows only single problems, so that a chat can't have a second turn."""

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each strategy, the options (`--set`) that a request may leave out."""

    @property
    def needed_bytes(self) -> int | None:
        """Memory that the plan takes. None when the size of the weights is unknown."""
        weights = (self.generator.weights_bytes, self.verifier.weights_bytes)
        if weights[0] is None or weights[1] is None:
            return None
        kv = self.memory.generator_kv_bytes + self.memory.verifier_kv_bytes
        return weights[0] + weights[1] + kv + 2 * ENGINE_OVERHEAD_BYTES + RESERVED_BYTES
