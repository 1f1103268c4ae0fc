"""The memory that an engine takes in addition to its KV cache, estimated from its model's shape.

A model that vLLM spreads over several cards is divided by tensor parallelism (Ref: Megatron-LM,
arXiv 1909.08053): each card has some of the attention heads, a part of each feed-forward layer and
of the vocabulary, and the whole residual stream. Where a model has fewer KV heads than cards,
several cards hold the same head.

The figures for a step were found by counting: vLLM's model runs on tensors without data, and a
dispatch mode adds up what is alive (`engine.vllm.inside.step_memory`). The tests compare these
formulas with such counts and with what a CPU engine holds. Context and CUDA graphs can't be counted
without a card; the first start on one measures all of it for later plans (`engine.memory_plan`).
"""

from dataclasses import asdict, dataclass

from flashedge.errors import ConfigError
from flashedge.models.shape import ModelShape

MAX_STEP_TOKENS = 4096
"""Most tokens of one step of an engine: vLLM's `max_num_batched_tokens`. Chosen by hand: a step's
memory grows with it, and with a tenth a long prompt takes many steps."""
IN_FLIGHT_TOKENS = 2 * MAX_STEP_TOKENS
"""Most tokens in flight: an asynchronous engine computes one step and has scheduled the next."""
CPU_SEQUENCES = 256
"""Most sequences of a step on a CPU, whose RAM has room for this many rows of logits."""
CARD_SEQUENCES = (128, 64, 32, 16)
"""Most sequences in one step of an engine on a card: the first at which a pair fits.

Each sequence costs a row of logits in two types, one of log-probabilities and one of noise: 2 MiB
with a vocabulary of 151,936 tokens. With 256 sequences, 128 more rows would take the memory of
thousands of tokens' KV, of which a card of 24 GB has too little already.
"""
GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes for which CUDA graphs are captured. vLLM rounds a batch up to the next one.

vLLM would capture every multiple of 8 up to twice the batch limit. Each size costs memory and
start-up time, and a decode step of 33 sequences takes about as long as one of 48.
"""
PASS_SIZES = (32, 64, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of a verifier's pass for which graphs are captured with the feature `verifier_graphs`. On
an H100 a pass of a 1.5B model takes 23 to 28 ms without them, of 64 tokens or of 4,096 alike."""


def choose_graph_sizes(sequences: int, *, samples: bool, on_card: bool) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph: those that a decode step can have, the largest step included.

    samples: whether the engine is a generator. Only one on a card has such graphs: its steps are so
    short that launching their kernels one by one would take longer than computing them.
    """
    if not (samples and on_card):
        return ()
    return (*(size for size in GRAPH_SIZES if size < sequences), sequences)


VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it."""


def check_spread(shape: ModelShape, cards: int, role: str) -> None:
    """Raises ConfigError where vLLM can't divide the model of the `role` by `cards`."""
    if can_spread(shape, cards):
        return
    possible = [str(n) for n in range(1, 17) if can_spread(shape, n)]  # no machine has more cards
    raise ConfigError(
        f"{shape.name} can't be spread over {cards} cards: they have to share its {shape.heads}"
        f" attention heads, {shape.kv_heads} KV heads and the width of its layers evenly",
        hint=f"give the {role} one of these numbers of cards: {', '.join(possible)}",
        param="devices",
    )


def can_spread(shape: ModelShape, cards: int) -> bool:
    """Whether vLLM can divide the model by `cards`. Sizes that are not known are not checked."""
    vocab = -(-(shape.vocab or 0) // VOCAB_PADDING) * VOCAB_PADDING
    divided = (shape.heads, shape.intermediate or 0, vocab)
    is_kv_divided = shape.kv_heads % cards == 0 or cards % shape.kv_heads == 0
    return is_kv_divided and not any(size % cards for size in divided)


def count_path_bytes(shape: ModelShape, cards: int, tokens: int, in_flight_tokens: int = 0) -> int:
    """Count the KV and states of a path of `tokens` tokens on each card."""
    size = shape.count_path_bytes(tokens, in_flight_tokens)
    return size // shape.kv_heads * max(1, shape.kv_heads // cards)


def count_weights_bytes(shape: ModelShape, cards: int) -> int:
    """Count the bytes of weights on each card. Norms, whole on each, are too small to count."""
    whole = shape.weights_bytes
    if cards <= shape.kv_heads or shape.hidden is None:
        return -(-whole // cards)
    # Each card holds a whole KV head where an even share would be less than one.
    number_bytes = whole / shape.params
    head = 2 * shape.layers * shape.hidden * shape.head_dim * number_bytes
    return round(whole / cards + head * (1 - shape.kv_heads / cards))


CONTEXT_BYTES = 512 << 20
"""Assumed size of CUDA's context, the loaded kernels and cuBLAS's workspaces."""
LINK_BYTES = 256 << 20
"""Assumed size of the buffers for results between cards (NCCL, and vLLM's own sum)."""
PROCESS_BYTES = 600 << 20
"""An engine's process on a CPU: torch, vLLM and their libraries. Measured with the bundled pair:
525 to 600 MiB, part of it shared between both engines."""
GRAPH_LAYER_BYTES = 3 << 18
"""Assumed size of the graphs of one batch size, for each layer.

vLLM captures a whole graph for decode steps, and one for each part between two attention layers for
mixed steps. Its logs on 3090 cards tell of 22 to 25 MiB for each size of the second kind.
"""
SORT_BYTES, CPU_SORT_BYTES = 40, 8
"""Counted bytes that noise and truncation take for each logit of a part of the batch. A CPU sorts
one row at a time."""
PART_LOGITS = 1 << 23
"""Logits that are sampled at once (`inside.sampling.naive.ELEMENTS`)."""
MARGIN = 0.1
"""Share added to an estimate: the error up to which the method was checked."""
LARGE_HIDDEN, LARGE_INTERMEDIATE, LARGE_VOCAB = 5120, 27_648, 152_064
"""Widths of a 32B model, for an entry of models.toml that gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The memory of one engine on one card without its KV cache, in bytes."""

    weights: int
    context: int
    """What the device's driver and libraries keep for the process."""
    forward: int
    """The peak of one step's forward pass."""
    logits: int
    """Logits of the largest step, in the model's type and in float32. 0 for a verifier."""
    logprobs: int
    noise: int
    """What sampling needs in addition to logits and log-probabilities."""
    graphs: int
    is_estimate: bool

    @property
    def sampler(self) -> int:
        return self.logits + self.logprobs + self.noise

    @property
    def step(self) -> int:
        """The most that a step holds at once. It samples after the forward pass."""
        return max(self.forward, self.sampler)

    @property
    def overhead(self) -> int:
        """All but the weights. MARGIN is added to an estimate."""
        whole = self.context + self.step + self.graphs
        return whole + round(MARGIN * whole) if self.is_estimate else whole

    @property
    def total(self) -> int:
        return self.weights + self.overhead

    def list_parts(self) -> dict[str, int]:
        found = asdict(self)
        found.pop("is_estimate")
        return found


NOTHING = EngineMemory(
    weights=0, context=0, forward=0, logits=0, logprobs=0, noise=0, graphs=0, is_estimate=True
)
"""The memory of a verifier that a pair lacks."""


def estimate_engine(
    shape: ModelShape, sequences: int, *, samples: bool, on_card: bool, cards: int = 1
) -> EngineMemory:
    """The memory of an engine with `sequences` in a step, on each of its `cards`. samples: whether
    it is a generator, whose cards all hold the whole logits: each draws the same tokens."""
    hidden = shape.hidden or LARGE_HIDDEN
    width = shape.intermediate or LARGE_INTERMEDIATE
    logits = sequences * (shape.vocab or LARGE_VOCAB) if samples else 0
    tokens = max(MAX_STEP_TOKENS, sequences)
    graphs = len(choose_graph_sizes(sequences, samples=samples, on_card=on_card))
    copy_bytes = 0 if shape.dtype_bytes == 4 else 4  # float32 logits need no copy in float32
    return EngineMemory(
        weights=count_weights_bytes(shape, cards),
        context=(CONTEXT_BYTES if on_card else PROCESS_BYTES) + (LINK_BYTES if cards > 1 else 0),
        forward=estimate_forward(
            shape.dtype_bytes, tokens, hidden, -(-width // cards), on_card=on_card
        ),
        logits=logits * (shape.dtype_bytes + copy_bytes),
        logprobs=logits * 4,
        noise=min(logits, PART_LOGITS) * (SORT_BYTES if on_card else CPU_SORT_BYTES),
        graphs=graphs * (shape.layers + 1) * GRAPH_LAYER_BYTES,
        is_estimate=True,
    )


def estimate_forward(
    dtype_bytes: int, tokens: int, hidden: int, width: int, *, on_card: bool
) -> int:
    """The peak of the forward pass, in the feed-forward part of a layer.

    It holds the gate and the up projection in one tensor of 2 x `width` (one card's share), their
    product, and five tensors of `hidden`: the residual stream, the part's input and output, and two
    that the calling functions still hold. On a CPU the activated gate is a tensor of its own for a
    moment, when the output does not exist yet.
    """
    elements = 3 * width + 5 * hidden
    if not on_card:
        elements = max(elements, 4 * width + 4 * hidden)
    return tokens * dtype_bytes * elements
