"""How much one step of an engine may hold, and for which batches CUDA graphs are captured."""

from __future__ import annotations

from dataclasses import dataclass

MAX_STEP_TOKENS = 4096
"""Most tokens of one step of an engine."""

CPU_SEQUENCES = 256
"""Most sequences in one step of an engine on a CPU, where logits are a small part of the memory."""

CARD_SEQUENCES = (128, 64, 32, 16)
"""Most sequences in one step of an engine on a card: the first at which a pair fits.

Each sequence costs a row of logits in two types, one of log-probabilities and one of noise: 2 MiB
with a vocabulary of 151,936 tokens. What 256 sequences would take more than 128 is KV for thousands
of tokens, which a card of 24 GB lacks first: the 2 GiB that a generator of 7B gets beside a
verifier hold 128 paths of 290 tokens.
"""

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes for which CUDA graphs are captured. vLLM rounds a batch up to the next one.

vLLM would capture every multiple of 8 up to twice the batch limit. Each size costs memory and
start-up time, and a decode step of 33 sequences takes about as long as one of 48, because reading
the weights takes most of it.
"""

PASS_SIZES = (32, 64, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of a verifier's pass for which graphs are captured where `verifier_graphs` is set. On an
H100 a pass of a 1.5B takes 23 to 28 ms without them, of 64 tokens or of 4,096 alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The largest step of one engine."""

    sequences: int
    samples: bool
    """Whether the engine samples tokens, so that a step holds logits. A verifier's does not."""

    tokens: int = MAX_STEP_TOKENS
    graph_sizes: tuple[int, ...] = ()
    """Batch sizes with a CUDA graph. Empty where the engine runs without graphs."""


def choose_limits(sequences: int, *, samples: bool, on_card: bool) -> BatchLimits:
    """Choose the limits of an engine for steps of up to `sequences` sequences.

    Only a generator on a card captures graphs, unless a setting asks for `PASS_SIZES`. Its steps
    are many and short, so that launching their kernels one by one would take longer than computing
    them.
    """
    graphs = choose_graph_sizes(sequences) if samples and on_card else ()
    return BatchLimits(
        sequences=sequences,
        samples=samples,
        tokens=max(MAX_STEP_TOKENS, sequences),
        graph_sizes=graphs,
    )


def choose_graph_sizes(sequences: int) -> tuple[int, ...]:
    """The sizes of `GRAPH_SIZES` that a decode step can have, the largest step included."""
    return (*(size for size in GRAPH_SIZES if size < sequences), sequences)
