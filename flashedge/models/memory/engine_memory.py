"""The memory that an engine takes beside its KV cache, estimated from the shape of its model.

The figures for a step were found by counting: vLLM's model runs on tensors without data, and a
dispatch mode adds up what is alive (`engine.vllm.inside.memory.live_bytes`). The tests compare
these formulas with such counts and with what a CPU engine really holds. Context and CUDA graphs
can't be counted without a card; their constants say where they come from. The first start on a card
measures all of it, and later starts plan with that (`engine.memory_plan`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flashedge.models.memory.batch_limits import BatchLimits
from flashedge.models.memory.tensor_parallel import count_weights_bytes
from flashedge.models.shape import ModelShape

CONTEXT_BYTES = 512 << 20
"""Assumed memory of CUDA's context, of the loaded kernels and of cuBLAS's workspaces."""

LINK_BYTES = 256 << 20
"""Assumed memory of the buffers through which several cards exchange results (NCCL, and vLLM's own
sum over cards)."""

PROCESS_BYTES = 600 << 20
"""Resident memory of an engine's process on a CPU: torch, vLLM and their libraries. Measured with
the bundled pair: 525 to 600 MiB, part of it shared between both engines."""

GRAPH_LAYER_BYTES = 3 << 18
"""Assumed memory of the graphs of one batch size, for each layer.

vLLM captures two kinds: one whole graph for decode steps, and one for each part between two
attention layers for mixed steps. Its logs on 3090 cards tell of 22 to 25 MiB for each size of the
second kind.
"""

SORT_BYTES = 40
"""Counted bytes that noise and truncation take for each logit of a part of the batch."""

PART_LOGITS = 1 << 23
"""Logits that are sampled at once (`inside.sampling.naive.ELEMENTS`)."""

MARGIN = 0.1
"""Share that is added to an estimate: the error up to which the method was checked."""

LARGE_HIDDEN, LARGE_INTERMEDIATE, LARGE_VOCAB = 5120, 27_648, 152_064
"""Widths of a 32B model, for an entry of models.toml that gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The memory of one engine, but for its KV cache, in bytes."""

    weights: int
    context: int
    """What the device's driver and libraries keep for the process."""

    forward: int
    """Most that the forward pass of one step holds at once."""

    logits: int
    """Logits of the largest step, in the model's type and in float32. 0 for a verifier."""

    logprobs: int
    noise: int
    """What sampling needs beside logits and log-probabilities."""

    graphs: int
    is_estimate: bool

    @property
    def sampler(self) -> int:
        """Most that sampling holds at once."""
        return self.logits + self.logprobs + self.noise

    @property
    def step(self) -> int:
        """Most that a step holds at once. It samples after the forward pass is over."""
        return max(self.forward, self.sampler)

    @property
    def overhead(self) -> int:
        """All but the weights. An estimate has a margin."""
        whole = self.context + self.step + self.graphs
        return whole + round(MARGIN * whole) if self.is_estimate else whole

    @property
    def total(self) -> int:
        return self.weights + self.overhead

    def parts(self) -> dict[str, int]:
        """The bytes of each part by name."""
        found = asdict(self)
        found.pop("is_estimate")
        return found


def estimate_engine(
    shape: ModelShape, limits: BatchLimits, *, on_card: bool, cards: int = 1
) -> EngineMemory:
    """Estimate the memory of an engine at its batch limit, on each of its cards.

    Every card has the whole logits: vLLM gathers them, and each card draws the same tokens.
    """
    hidden = shape.hidden_size or LARGE_HIDDEN
    width = shape.intermediate_size or LARGE_INTERMEDIATE
    logits = limits.sequences * (shape.vocab_size or LARGE_VOCAB) if limits.samples else 0
    single = 0 if shape.dtype_bytes == 4 else 4  # float32 logits are not converted
    return EngineMemory(
        weights=count_weights_bytes(shape, cards),
        context=(CONTEXT_BYTES if on_card else PROCESS_BYTES) + (LINK_BYTES if cards > 1 else 0),
        forward=estimate_forward(
            shape.dtype_bytes, limits.tokens, hidden, -(-width // cards), on_card=on_card
        ),
        logits=logits * (shape.dtype_bytes + single),
        logprobs=logits * 4,
        noise=min(logits, PART_LOGITS) * SORT_BYTES,
        graphs=len(limits.graph_sizes) * (shape.layers + 1) * GRAPH_LAYER_BYTES,
        is_estimate=True,
    )


def estimate_forward(
    dtype_bytes: int, tokens: int, hidden: int, width: int, *, on_card: bool
) -> int:
    """Estimate what the forward pass holds at its peak, in the feed-forward part of a layer.

    That is the gate and the up projection in one tensor of 2 x `width`, their product, and five
    tensors of `hidden`: the residual stream, the part's input and output, and two that the calling
    functions still hold. On a CPU the activated gate is a tensor of its own for a moment, when the
    output does not exist yet. Where several cards share a layer, `width` is the share of one.
    """
    elements = 3 * width + 5 * hidden
    if not on_card:
        elements = max(elements, 4 * width + 4 * hidden)
    return tokens * dtype_bytes * elements
