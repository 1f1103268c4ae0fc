"""Engines and loads for the tests of the KV split."""

from dataclasses import dataclass

from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, BatchTime, RooflineCurve
from flashedge.scheduling.kv.split import KvMemory, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Workload
from scripts.bench.flashtts.shapes import MISTRAL_7B, QWEN25_1_5B, QWEN25_7B

MIB = 1 << 20


@dataclass(frozen=True)
class Whole:
    """Whole seconds, so that ties are exact: fixed + each * batch."""

    fixed: int
    each: int

    def decode_at(self, context: float) -> BatchTime:
        return lambda batch: self.fixed + self.each * batch

    def prefill_at(self, context: float, new: float) -> BatchTime:
        return lambda batch: self.fixed + self.each * batch * int(new)


def of_shape(shape: ModelShape) -> EngineCost:
    return EngineCost(
        curve=RooflineCurve(device=RTX_4090, shape=shape),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        block_tokens=16,
    )


SMALL, LARGE, VERIFIER_7B = of_shape(QWEN25_1_5B), of_shape(QWEN25_7B), of_shape(MISTRAL_7B)
LEVEL = Workload(paths=64, context_tokens=400, live_tokens=4900, step_tokens=52)


def split_of(
    kv_bytes: int,
    load: Workload = LEVEL,
    generator: EngineCost = SMALL,
    verifier: EngineCost = VERIFIER_7B,
) -> KvSplit:
    memory = KvMemory(generator=generator, verifier=verifier, kv_bytes=kv_bytes)
    return memory.choose_split(load)
