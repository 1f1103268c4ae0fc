"""What does our scheduler cost an engine step, compared with vLLM's own?

    python -m scripts.bench.flashtts.scheduler_overhead [--n 4 16 64] [--rounds 9]

This process holds the generator's engine three times, so that its scheduler can be timed: with
vLLM's scheduler (steps end at stop strings, found in the front end), with ours, and with ours and
speculation. Each draws the same paths, step by step, all paths of a level at once, in the order
A B C, then C B A, and so on. Each round has problems of its own.

It prints medians over rounds: sequences of an engine step, microseconds that the scheduler's
methods take in it, and the whole step. `overhead` is the time beyond that of vLLM's scheduler for a
batch of that size (a line through vLLM's own figures), as a share of the step, since speculation
fills batches up. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm import compat
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.scheduling.speculation.continuation import Continuation
from flashedge.types import Granularity, Message, Sampling, TokenIds
from scripts.bench.daemon import read_problems, report

LEVELS = 6
STEP = Granularity(max_tokens=256)
KV_BYTES = 256 << 20
METHODS = ("add_request", "schedule", "update_from_output", "finish_requests")
VLLM, EDGE, SPECULATING = "vllm", "flashedge", "flashedge, speculating"


@dataclass(slots=True)
class Clock:
    """Counts seconds inside the scheduler and inside the engine, and the engine's steps."""

    scheduler_s: float = 0.0
    engine_s: float = 0.0
    steps: int = 0
    sequences: int = 0
    _deep: int = field(default=0, repr=False)

    def time_calls(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `method` to count its time, once if methods call each other."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._deep += 1
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._deep -= 1
                if not self._deep:
                    self.scheduler_s += time.perf_counter() - began

        return call

    def count_sequences(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `schedule` to count the sequences of its steps."""

        def call(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.sequences += len(output.num_scheduled_tokens)
            return output

        return call


class Side:
    """One engine in this process."""

    def __init__(self, name: str) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine

        from flashedge.engine.vllm.codec import HFCodec
        from flashedge.engine.vllm.engine_options import EngineOptions
        from flashedge.engine.vllm.generator import VllmGenerator

        config = load_config({})
        spec = find_pair("bundled", config).generator
        path = resolve_model(spec, config)
        self._name = name
        self.codec = HFCodec(path)
        options = EngineOptions(
            name=name,
            model=path,
            dtype=spec.dtype,
            max_model_len=spec.max_model_len,
            kv_bytes=KV_BYTES,
        )
        args = VllmGenerator(options, self.codec).options.build_args()
        if name == VLLM:
            args.scheduler_cls = None
        self._max_model_len = spec.max_model_len
        self._llm = LLMEngine.from_vllm_config(args.create_engine_config(), disable_log_stats=True)
        self._scheduler = self._llm.engine_core.engine_core.scheduler
        self._methods = {name: getattr(self._scheduler, name) for name in METHODS}
        self._ids = 0

    def draw(self, prompts: Sequence[TokenIds], run: str) -> Clock:
        """Draw LEVELS steps of each path."""
        clock = Clock()
        for name, method in self._methods.items():
            timed = clock.time_calls(method)
            setattr(
                self._scheduler, name, clock.count_sequences(timed) if name == "schedule" else timed
            )
        paths = dict(enumerate(prompts))
        for level in range(LEVELS):
            if self._name == SPECULATING:
                seeds = [make_seed(level, index) for index in paths]
                self._scheduler.drop_unused_drafts(run, [level - 1], seeds, len(prompts))
            paths = self._draw_level(paths, level, run, clock)
        if self._name == SPECULATING:
            self._scheduler.end_run(run)
        self._llm.reset_prefix_cache()
        return clock

    def _draw_level(
        self, paths: dict[int, TokenIds], level: int, run: str, clock: Clock
    ) -> dict[int, TokenIds]:
        """Draw one step of each path. Returns the paths that have not ended."""
        indices: dict[str, int] = {}
        grown: dict[int, list[int]] = defaultdict(list)
        for index, path in paths.items():
            self._ids += 1
            indices[str(self._ids)] = index
            request = ExtendRequest(
                token_ids=path,
                seed=make_seed(level, index),
                sampling=Sampling(temperature=0.8),
                max_tokens=STEP.max_tokens,
                to_boundary=True,
                continuation=self._continuation(level, index, run),
            )
            prompt = {"prompt_token_ids": list(path)}
            began = time.perf_counter()
            self._llm.add_request(str(self._ids), prompt, self._build_params(request))
            clock.engine_s += time.perf_counter() - began
        left, ended = set(indices), set()
        while left:
            began = time.perf_counter()
            outputs = self._llm.step()
            clock.engine_s += time.perf_counter() - began
            clock.steps += 1
            for output in outputs:
                part = output.outputs[0]
                grown[indices[output.request_id]] += part.token_ids
                if output.finished:
                    left.discard(output.request_id)
                    if part.stop_reason is None or part.stop_reason in self.codec.eos_ids:
                        ended.add(indices[output.request_id])
        return {p: (*path, *grown[p]) for p, path in paths.items() if p not in ended}

    def _continuation(self, level: int, index: int, run: str) -> Continuation | None:
        if self._name != SPECULATING or level == LEVELS - 1:
            return None
        seeds = (make_seed(level + 1, index),)
        return Continuation(run=run, level=level, seeds=seeds, granularity=STEP, max_drafts=1)

    def _build_params(self, request: ExtendRequest) -> Any:
        from flashedge.engine.vllm.generator import build_params
        from flashedge.engine.vllm.stock import build_stock_params

        make = build_stock_params if self._name == VLLM else build_params
        return make(request, self.codec, self._max_model_len)


def make_seed(level: int, index: int) -> int:
    return 1000 * level + index


def measure(sides: dict[str, Side], n: int, rounds: int) -> dict[str, dict[str, float]]:
    texts = [p["problem"] for p in read_problems("heldout", n * (rounds + 1))]
    encode = sides[VLLM].codec.encode_chat
    found: dict[str, list[Clock]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        chosen = [texts[(number * n + i) % len(texts)] for i in range(n)]
        prompts = [encode([Message(role="user", content=text)]) for text in chosen]
        for name in sorted(sides, reverse=number % 2 == 1):
            clock = sides[name].draw(prompts, f"{n}-{number}")
            if number:  # the first one warms up
                found[name].append(clock)
    return {name: compute_medians(clocks) for name, clocks in found.items()}


def add_overhead(table: dict[str, dict[str, dict[str, float]]]) -> None:
    """Add `overhead` to each row of each n."""
    own = [rows[VLLM] for rows in table.values()]
    line = statistics.linear_regression(
        [row["sequences"] for row in own], [row["scheduler_us"] for row in own]
    )
    for rows in table.values():
        for row in rows.values():
            expected = line.intercept + line.slope * row["sequences"]
            row["overhead"] = round((row["scheduler_us"] - expected) / row["step_us"], 4)


def compute_medians(clocks: Sequence[Clock]) -> dict[str, float]:
    """Medians over rounds."""
    return {
        "scheduler_us": round(statistics.median(1e6 * c.scheduler_s / c.steps for c in clocks), 1),
        "step_us": round(statistics.median(1e6 * c.engine_s / c.steps for c in clocks), 1),
        "sequences": round(statistics.median(c.sequences / c.steps for c in clocks), 2),
        "steps": round(statistics.median(c.steps for c in clocks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    if len(set(args.n)) < 2:
        parser.error(
            "give at least two sizes with --n: the overhead needs a line through vLLM's figures"
        )
    compat.prepare_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    sides = {name: Side(name) for name in (VLLM, EDGE, SPECULATING)}
    load = os.getloadavg()[0]
    rows = {f"n = {n}": measure(sides, n, args.rounds) for n in args.n}
    add_overhead(rows)
    report(rounds=args.rounds, levels=LEVELS, load=[load, os.getloadavg()[0]], **rows)


if __name__ == "__main__":
    main()
