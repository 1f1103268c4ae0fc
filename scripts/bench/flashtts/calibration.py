"""Fits the simulated RTX 4090 to two public points and predicts the three others.

    python -m scripts.bench.flashtts.calibration [--problems 8] [--lengths smooth|observed]
    python -m scripts.bench.flashtts.calibration --decode

The points were published for a port of FlashTTS to vLLM 0.19 on a 4090, 7B + 1.5B with
speculation: seconds per MATH-500 problem at n = 1, 4, 16, 64, 256. Peak and bandwidth are the data
sheet's. Two overheads are fitted: one per engine step, one per sequence in it. The fit is linear,
since the simulated schedule does not depend on them: one run without overheads gives the roofline
seconds, the steps and the sequences. It is fitted to the ends, n = 1 and 256, so that the predicted
points lie between; the errors of every other two points are printed too. Assumed of the port are
whole-path scoring (vLLM reads no prefix cache for pooling models by default), half of the KV for
each engine, and arrival order.

The points can't tell where a step's overhead comes from: `sequence_s` includes what the port's own
Python adds to each path.

`--decode` asks instead what a public decode throughput of plain vLLM on a 4090 allows: 300 prompts
of 100 tokens with 600 new tokens each, all at once, at 16 bits, in requests per second by model. It
is one point a model, and no figure at batch 1 of the same source is known. So it fixes no overhead:
it gives the seconds a sequence that are left for each assumed number of seconds a step. All 600
tokens are assumed to be generated, by waves as large as vLLM's limit of 256 or its KV memory
allows. The last line is JSON.

Ref: https://www.databasemart.com/blog/vllm-gpu-benchmark-rtx4090 (offline table)
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.models.shape import ModelShape
from flashedge.optimizations import Optimizations
from flashedge.scheduling.costs import Device, RooflineCurve
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import add_lengths_flag, format_table, save_json, save_tables
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.simulate import STUDY_OVERHEAD_BYTES, Question, build_bench
from scripts.lab.benchmark.virtual_run import simulate_run

PUBLIC_S = {1: 9.5, 4: 12.7, 16: 18.3, 64: 31.8, 256: 65.3}
FITTED = (1, 256)
PUBLIC_DECODE = {
    "math-1.5b+skywork-1.5b": ("DeepSeek-R1-Distill-Qwen-1.5B", 13.85),
    "math-7b+skywork-1.5b": ("DeepSeek-R1-Distill-Qwen-7B", 5.96),
}
"""Pair whose generator has the model's shape -> (model, public requests per second)."""
REQUESTS, PROMPT_TOKENS, NEW_TOKENS, MAX_SEQS = 300, 100, 600, 256
STEP_MS = (1, 3, 9)
PAIR = "math-7b+skywork-1.5b"
PORT = Rung(name="port", about="", optimizations=Optimizations.only("speculation"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Means over problems. `roofline_s` is without overhead, `sequences` is summed over steps."""

    roofline_s: float
    steps: float
    sequences: float

    def seconds(self, overhead_s: float, sequence_s: float) -> float:
        return self.roofline_s + overhead_s * self.steps + sequence_s * self.sequences


def measure_load(n: int, problems: int, lengths: str) -> Load:
    question = Question(
        gpu="rtx4090", pair=PAIR, strategy="beam", n=n, problems=problems, lengths=lengths
    )
    bench = build_bench(question, load_config())
    bare = replace(bench.setup.device, overhead_s=0.0, sequence_s=0.0)
    setup = replace(bench.setup, device=bare)
    batches: list[int] = []
    seconds = 0.0
    for row in bench.rows:
        run = simulate_run(
            PORT,
            setup,
            bench.trace,
            bench.spec(row),
            on_step=lambda name, batch, took_s: batches.append(len(batch)),
        )
        seconds += run.seconds
    count = len(bench.rows)
    return Load(
        roofline_s=seconds / count, steps=len(batches) / count, sequences=sum(batches) / count
    )


def fit_overheads(loads: Mapping[int, Load], points: tuple[int, int]) -> tuple[float, float]:
    """Fit (overhead_s, sequence_s) to two points."""
    one, other = (loads[n] for n in points)
    left = [PUBLIC_S[n] - loads[n].roofline_s for n in points]
    det = one.steps * other.sequences - other.steps * one.sequences
    return (
        (left[0] * other.sequences - left[1] * one.sequences) / det,
        (one.steps * left[1] - other.steps * left[0]) / det,
    )


def predict_errors(loads: Mapping[int, Load], points: tuple[int, int]) -> dict[str, float]:
    """Predict the points that were not fitted. Errors are predicted / public - 1."""
    found = fit_overheads(loads, points)
    return {
        f"n={n}": round(load.seconds(*found) / PUBLIC_S[n] - 1, 3)
        for n, load in loads.items()
        if n not in points
    }


def bound_sequence_s(
    device: Device, shape: ModelShape, requests_per_s: float, step_s: float, share: float = 0.9
) -> float:
    """Compute the seconds a sequence with which the simulated card decodes as fast as the public
    figure, given the seconds a step."""
    room = device.memory_bytes * share - shape.weights_bytes - STUDY_OVERHEAD_BYTES
    full = PROMPT_TOKENS + NEW_TOKENS
    batch = min(MAX_SEQS, int(room / (shape.kv_bytes_per_token * full)))
    whole, rest = divmod(REQUESTS, batch)
    waves = [batch] * whole + [rest] * (rest > 0)
    context = PROMPT_TOKENS + NEW_TOKENS // 2
    bare = replace(device, overhead_s=0.0, sequence_s=0.0)
    decode_s = RooflineCurve(device=bare, shape=shape).decode_at(context)
    roofline_s = sum(decode_s(count) for count in waves)
    left = REQUESTS / requests_per_s - NEW_TOKENS * (roofline_s + len(waves) * step_s)
    return left / (NEW_TOKENS * REQUESTS)


def report_decode() -> None:
    """Print what the public decode throughput leaves for a sequence, by model and step."""
    rows: list[tuple[object, ...]] = []
    left: dict[str, dict[str, float]] = {}
    for pair, (model, requests_per_s) in PUBLIC_DECODE.items():
        setup = build_bench(Question(gpu="rtx4090", pair=pair, strategy="beam", n=1), load_config())
        by_step = {
            f"{step_ms:g} ms a step": 1e6
            * bound_sequence_s(
                setup.setup.device, setup.setup.generator, requests_per_s, step_ms / 1e3
            )
            for step_ms in STEP_MS
        }
        left[model] = {name: round(us, 1) for name, us in by_step.items()}
        tokens_per_s = requests_per_s * NEW_TOKENS
        rows.append((model, f"{tokens_per_s:.0f}", *(f"{us:.0f}" for us in by_step.values())))
    head = ("model", "tokens/s", *(f"{step_ms:g} ms a step" for step_ms in STEP_MS))
    print(format_table(head, rows, "Microseconds a sequence that public decode throughput leaves"))
    report(simulated=True, microseconds_a_sequence=left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument(
        "--decode", action="store_true", help="what public decode throughput allows, alone"
    )
    add_lengths_flag(parser)
    asked = parse_arguments(parser, problems=1)
    if asked.decode:
        report_decode()
        return
    problems = asked.problems
    loads: dict[int, Load] = {}
    with show_bar("simulating", len(PUBLIC_S), unit="widths") as advance:
        for n in PUBLIC_S:
            loads[n] = measure_load(n, problems, asked.lengths)
            advance(1)
    overhead_s, sequence_s = fit_overheads(loads, FITTED)
    about = f"{overhead_s * 1e3:.2f} ms a step and {sequence_s * 1e6:.0f} us a sequence in it"
    first = format_table(("n", "public, s", "simulated, s", "error"), _build_rows(loads), about)
    pairs = [
        (f"{a} and {b}", *(f"{e:+.1%}" for e in predict_errors(loads, (a, b)).values()))
        for a, b in combinations(PUBLIC_S, 2)
    ]
    second = format_table(
        ("fitted to n =", "the other three", "", ""), pairs, "Any other two points"
    )
    save_tables("calibration", "The simulated 4090 beside a real one", [first, second])
    results = {
        "simulated": True,
        "problems": problems,
        "lengths": asked.lengths,
        "overhead_s": overhead_s,
        "sequence_s": sequence_s,
        "fitted": FITTED,
        "errors": predict_errors(loads, FITTED),
    }
    save_json("calibration", results)
    print(f"{first}\n\n{second}")
    report(**results)


def _build_rows(loads: Mapping[int, Load]) -> list[tuple[object, ...]]:
    found = fit_overheads(loads, FITTED)
    return [
        (
            n,
            PUBLIC_S[n],
            f"{load.seconds(*found):.1f}",
            "fitted" if n in FITTED else f"{load.seconds(*found) / PUBLIC_S[n] - 1:+.1%}",
        )
        for n, load in loads.items()
    ]


if __name__ == "__main__":
    main()
