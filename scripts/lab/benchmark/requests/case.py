"""One load of single requests, and the engine that serves it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.lab.benchmark.load.timings import Timings
from scripts.lab.sim.config import SimConfig

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestCase:
    """Requests in the order of their arrival. All arrays are (requests,)."""

    arrived_s: Floats
    prompt_tokens: Integers

    output_tokens: Integers
    """True lengths, at least 1. No scheduler but an oracle knows them."""

    def __post_init__(self) -> None:
        sizes = {len(self.arrived_s), len(self.prompt_tokens), len(self.output_tokens)}
        if len(sizes) != 1 or not len(self.arrived_s):
            raise ValueError(f"a case needs requests, in arrays of one length, not {sizes}")
        if (np.diff(self.arrived_s) < 0).any():
            raise ValueError("requests must stand in the order of their arrival")
        if min(self.output_tokens.min(), self.prompt_tokens.min()) < 1:
            raise ValueError("a request has at least one token of prompt and of output")

    def __len__(self) -> int:
        return len(self.arrived_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedCase:
    """When each request of a case was served. All arrays are (requests,) of virtual seconds."""

    started_s: Floats
    """Start of the step that first computed it."""

    first_token_s: Floats
    finished_s: Floats

    steps: int
    """Steps of the engine."""

    preemptions: int

    def build_timings(self, case: RequestCase) -> Timings:
        return Timings(
            arrived_s=case.arrived_s,
            started_s=self.started_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            output_tokens=case.output_tokens,
        )


def check_fits(case: RequestCase, config: SimConfig) -> None:
    """Raises ValueError where a request exceeds the model's context, or the KV does not hold a
    request of full length, so that it could never finish."""
    longest = int((case.prompt_tokens + case.output_tokens).max())
    if longest > config.max_model_len:
        raise ValueError(f"a request has {longest} tokens, the model's limit is smaller")
    if config.kv_bytes // config.block_bytes * config.block_tokens < config.max_model_len:
        raise ValueError(f"{config.kv_bytes} bytes of KV do not hold one request of full length")
    if config.max_num_seqs > config.max_batched_tokens:
        raise ValueError("a step must have room for a token of each sequence")
