"""How long does the search for the best KV split take?

    python -m scripts.bench.flashtts.split_search

The search tries one batch for each number of rounds, about 2 √N for each engine, and each try calls
the cost curve. So its time grows with √N and with the cost of a call (roofline: a few
multiplications; measured: a bisection). It prints the median and the 95th percentile over pairs,
budgets and repeats. Offload is considered too, which costs next to nothing. The last line is JSON.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import product

from flashedge.models.shape import ModelShape
from flashedge.scheduling.costs import RTX_4090, CostCurve, RooflineCurve, interpolate_measurements
from flashedge.scheduling.kv.split import HostLink, KvMemory
from flashedge.scheduling.kv.stages import EngineCost, Workload
from scripts.bench.daemon import report
from scripts.bench.flashtts.shapes import MISTRAL_7B, QWEN25_1_5B, QWEN25_7B

WIDTHS = (8, 16, 32, 64, 128, 256, 512)
PAIRS = ((QWEN25_1_5B, QWEN25_1_5B), (QWEN25_1_5B, MISTRAL_7B), (QWEN25_7B, QWEN25_1_5B))
BUDGETS_GIB = (1, 2, 4, 8, 14)
REPEATS = 40
LINK = HostLink(bytes_per_s=25e9, capacity_bytes=32 << 30, switch_s=0.005)
BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (0, 256, 1024, 4096)
TOKENS = (16, 64, 256, 1024, 4096)


def build_roofline(shape: ModelShape) -> CostCurve:
    return RooflineCurve(device=RTX_4090, shape=shape)


def build_measured(shape: ModelShape) -> CostCurve:
    """Build the curve that a profiler would have measured of the roofline."""
    curve = build_roofline(shape)
    return interpolate_measurements(
        batches=BATCHES,
        contexts=CONTEXTS,
        decode=[[curve.decode_at(c)(b) for c in CONTEXTS] for b in BATCHES],
        tokens=TOKENS,
        prefill=[curve.prefill_at(0, t)(1) for t in TOKENS],
    )


def build_engine(shape: ModelShape, curve: CostCurve) -> EngineCost:
    return EngineCost(curve=curve, kv_bytes_per_token=shape.kv_bytes_per_token, block_tokens=16)


def build_load(paths: int) -> Workload:
    """The middle of a beam search with four children each: 52 tokens a step, 400 so far."""
    live = 100 + 300 * -(-paths // 4)
    return Workload(paths=paths, context_tokens=400, live_tokens=live, step_tokens=52)


def time_searches(kind: str, paths: int) -> Iterator[float]:
    make = {"roofline": build_roofline, "measured": build_measured}[kind]
    for (generator, verifier), gib in product(PAIRS, BUDGETS_GIB):
        engines = build_engine(generator, make(generator)), build_engine(verifier, make(verifier))
        for _ in range(REPEATS):
            began = time.perf_counter()
            memory = KvMemory(
                generator=engines[0], verifier=engines[1], kv_bytes=gib << 30, link=LINK
            )
            memory.choose_split(build_load(paths))
            yield time.perf_counter() - began


def main() -> None:
    figures: dict[str, dict[str, list[float]]] = {}
    for kind in ("roofline", "measured"):
        for paths in WIDTHS:
            took = sorted(time_searches(kind, paths))
            found = statistics.median(took) * 1e3, took[len(took) * 95 // 100] * 1e3
            print(f"{kind:9} N={paths:<4} median {found[0]:.3f} ms, p95 {found[1]:.3f} ms")
            figures.setdefault(kind, {})[f"n={paths}"] = [round(ms, 4) for ms in found]
    report(median_and_p95_ms=figures)


if __name__ == "__main__":
    main()
