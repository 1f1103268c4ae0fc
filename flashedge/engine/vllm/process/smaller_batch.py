"""What an engine that ran out of memory is started with next: half of the batch."""

from __future__ import annotations

from dataclasses import replace

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.models.memory.engine_memory import choose_graph_sizes

LEAST_SEQUENCES = 8
"""An engine with so few sequences a step is slow. If it is still short, less would not help."""
LEAST_TOKENS = 512


def halve_batch(options: EngineOptions) -> EngineOptions | None:
    """Halve the sequences and tokens of a step. None if both are as small as they get.

    A step's memory grows with both: activations with the tokens, logits and graphs with the
    sequences. What a step computes for a request does not depend on either.
    """
    sequences = _halve(options.max_num_seqs, LEAST_SEQUENCES)
    tokens = _halve(options.max_batched_tokens, LEAST_TOKENS)
    if (sequences, tokens) == (options.max_num_seqs, options.max_batched_tokens):
        return None
    return replace(
        options,
        max_num_seqs=sequences,
        max_batched_tokens=tokens,
        graph_sizes=_choose_graphs(options, sequences, tokens),
    )


def _choose_graphs(options: EngineOptions, sequences: int, tokens: int) -> tuple[int, ...]:
    """A generator's are of decode steps, a verifier's of passes of so many tokens."""
    if options.graph_sizes and options.name == "generator":
        return choose_graph_sizes(sequences)
    return tuple(size for size in options.graph_sizes if size <= tokens)


def _halve(count: int, least: int) -> int:
    return max(count // 2, min(count, least))


def describe_batch(now: EngineOptions, configured: EngineOptions) -> str | None:
    """Say that the batch is smaller than configured. None if it is not."""
    if now.max_num_seqs == configured.max_num_seqs:
        return None
    return (
        f"it ran out of memory, so a step holds {now.max_num_seqs} sequences instead of"
        f" {configured.max_num_seqs}, until the daemon starts anew"
    )
