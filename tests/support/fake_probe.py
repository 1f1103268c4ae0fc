"""A probe whose engine is a formula: for tests of what measures through one."""

from typing import Any

from flashedge.profiler.measure import DECODE, PREFILL
from flashedge.profiler.roofline import Fit, Sample

EXACT = {"median_error": 0, "p90_error": 0, "samples": 0}
TRUTH = Fit(overhead_s=0.002, sequence_s=1e-5, flops_per_s=1e12, bytes_per_s=1e11, **EXACT)
PARAMS = 10**8
FIGURES: dict[str, Any] = {
    "gemm": [
        {"dtype": "float32", "n": 256, "seconds": 1e-3, "flops_per_s": 4e10},
        {"dtype": "float32", "n": 512, "seconds": 1e-3, "flops_per_s": 9e10},
        {"dtype": "bfloat16", "n": 512, "seconds": 1e-3, "flops_per_s": 2e11},
    ],
    "copies": [{"bytes": 1 << 20, "bytes_per_s": 9e10}, {"bytes": 1 << 28, "bytes_per_s": 2e10}],
    "transfers": [{"direction": "host to device", "pinned": True, "bytes_per_s": 2.5e10}],
    "launch_s": 4e-6,
    "round_trip_s": 9e-6,
}
"""Of a device, as `bench` gives them."""


def sample(phase: str, sequences: int, context: float, new: float, *, truth: Fit = TRUTH) -> Sample:
    """A step of a model of 10^8 parameters, 2 bytes each, 10^5 bytes of KV a token."""
    flops = 2.0 * PARAMS * sequences * new
    moved = 2.0 * PARAMS + 1e5 * sequences * (context + new)
    seconds = truth.predict_s(sequences=sequences, flops=flops, bytes=moved)
    shape = {"phase": phase, "sequences": sequences, "context": context, "new": new}
    return Sample(**shape, seconds=seconds, flops=flops, bytes=moved)


class FakeProbe:
    max_context = 4096
    max_sequences = 64
    max_step_tokens = 4096
    kv_tokens = 100_000

    def __init__(self, name: str = "generator", *, decodes: bool = True, pace: float = 1) -> None:
        self.name, self.decodes = name, decodes
        self.asked: list[tuple[str, int, int]] = []
        self._now, self._pace = 0.0, pace

    def read_clock_s(self) -> float:
        return self._now

    async def prefill(self, sequences: int, tokens: int) -> Sample:
        return self._take(PREFILL, sequences, 0, tokens)

    async def decode(self, sequences: int, context: int, steps: int) -> Sample:
        return self._take(DECODE, sequences, context, 1)

    def _take(self, phase: str, sequences: int, context: int, new: int) -> Sample:
        self.asked.append((phase, sequences, context or new))
        found = sample(phase, sequences, context, new)
        self._now += found.seconds * self._pace
        return found
