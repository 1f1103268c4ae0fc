"""Makes attention sum over the KV of a sequence in one order.

Kernels split a long KV, and how often they do depends on what else is in the batch. The choice is
made while the metadata of a step is built.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm import envs

ONE_SPLIT = {
    "VLLM_CPU_ATTN_SPLIT_KV": False,  # a CPU's kernel
    "VLLM_BATCH_INVARIANT": True,  # FlashAttention: the metadata of one step asks for one split
}


@contextmanager
def force_one_split() -> Iterator[None]:
    """Let metadata that is built meanwhile ask for one split.

    vLLM's module of settings computes a setting where it has no attribute of that name.
    """
    before = {name: envs.__dict__.get(name) for name in ONE_SPLIT}
    envs.__dict__.update(ONE_SPLIT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del envs.__dict__[name]
            else:
                envs.__dict__[name] = value
