"""What do deterministic requests cost on a card, by rollback and by batch-invariant kernels?

Two generators of the pair run on one card, each in a process of its own: the default one,
asynchronous and without any flag, and one with vLLM's batch-invariant kernels. So the card has to
hold the model twice: one of 1.5B fits 24 GB, and a 7B in bf16 needs 48. The setting does nothing on
a CPU, so a rehearsal compares the default one with itself. First each draws the same requests alone
and beside others: `cases` says how many have other bits. Then the ways take turns in rounds: no
flag, the flag on a share of the requests, batch-invariant kernels; every second round in reverse.
Lengths follow the paper's
ShareGPT; all requests are there at once. In the end matrix products and norms are timed with both
kinds of kernels (Fig. 4).

Each run is a line of FOLDER/runs.jsonl when it is done; called again, the rounds go on there. The
last line is JSON. See determinism.sh. Ref: arXiv 2601.17768 §5.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.platform import runs_on_cpu
from flashedge.engine.self_test_turns import Turns
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.registry import find_pair
from flashedge.types import Sampling
from scripts.bench.daemon import ROOT, report
from scripts.bench.determinism.card import add_row, make_jobs, read_rows
from scripts.bench.determinism.scenario import choose_evenly
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.figures import find_quantile
from scripts.bench.smoke import is_smoke, parse_arguments
from scripts.card.results import KV_OPTION, Results, make_folder
from scripts.lab.statistics import interval

WITHOUT_VERIFIER = "smollm2-135m"
"""A pair that has none: its entry takes the place of the pair's verifier, which is not needed."""
SHARES = (0, 9, 50, 100)
"""Percent of the requests that are deterministic. 9 % is one of eleven."""
PLAIN, ROLLBACK, INVARIANT = "default", "rollback", "invariant kernels"
OTHERS = 31
OTHER_BYTES = 3 << 30
"""Of an engine, besides its weights and KV: activations, CUDA graphs, the context of CUDA."""
RATIOS = ("tokens_per_s", "p50_s", "p99_s", "first_token_s", "others_p50_s")


# ---------------------------------------------------------------- in an engine's own process

_loop = asyncio.new_event_loop()
_generator: Any = None


def run_here(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it on this process's event loop, which goes on in a thread."""
    if not _loop.is_running():
        threading.Thread(target=_loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop).result()


def start(pair: str, kv_bytes: int, batch_invariant: bool) -> Any:
    return run_here(_start(pair, kv_bytes, batch_invariant))


async def _start(pair: str, kv_bytes: int, batch_invariant: bool) -> dict[str, Any]:
    """Returns what the self-test found."""
    from flashedge.engine.vllm.pair import VllmPair

    global _generator
    config = load_config({"batch_invariant": batch_invariant, "kv_bytes": str(kv_bytes)})
    none = find_pair(WITHOUT_VERIFIER, config).verifier
    engines = VllmPair(replace(find_pair(pair, config), verifier=none), config)
    await engines.start()
    _generator = engines.generator
    return await engines.self_test(Turns())


def stop() -> None:
    run_here(_generator.stop())


def compare_bits(total: int, flag: bool) -> Any:
    return run_here(_compare_bits(total, flag))


async def _compare_bits(total: int, flag: bool) -> dict[str, Any]:
    """Draw requests alone, and again beside OTHERS without the flag."""
    some = [replace(request, deterministic=flag) for request in build_requests(total, seed=0)]
    alone = [await draw(request) for request in some]
    before = await read_counters()
    others = build_requests(OTHERS, seed=1)
    beside = await asyncio.gather(*(draw(request) for request in (*some, *others)))
    pairs = [(a[:2], b[:2]) for a, b in zip(alone, beside, strict=False)]
    return {
        "deterministic": flag,
        "requests": total,
        "differ": sum(a[0] != b[0] for a, b in pairs),
        "logprobs_differ": sum(a != b for a, b in pairs),
        **await count_since(before),
    }


def serve(total: int, percent: int, seed: int) -> Any:
    return run_here(_serve(total, percent, seed))


async def _serve(total: int, percent: int, seed: int) -> dict[str, Any]:
    """Serve requests that are all there at once, a share of them deterministic."""
    chosen = choose_evenly(total, percent)
    requests = build_requests(total, seed)
    requests = [replace(r, deterministic=i in chosen) for i, r in enumerate(requests)]
    before, began = await read_counters(), time.perf_counter()
    drawn = await asyncio.gather(*(draw(request) for request in requests))
    seconds = time.perf_counter() - began
    last = [each[3] for each in drawn]
    others = [s for i, s in enumerate(last) if i not in chosen] or last
    return {
        "seconds": seconds,
        "tokens_per_s": sum(len(each[0]) for each in drawn) / seconds,
        "p50_s": median(last),
        "p99_s": find_quantile(last, 0.99),
        "first_token_s": median(each[2] for each in drawn),
        "others_p50_s": median(others),
        **await count_since(before),
    }


def build_requests(total: int, seed: int) -> list[ExtendRequest]:
    codec, longest = _generator.codec, 32 if is_smoke() else _generator.max_model_len
    vocabulary = codec.encode("0123456789+-=. What is the sum?")
    return [
        ExtendRequest(
            token_ids=tuple(vocabulary[i % len(vocabulary)] for i in job.prompt)[: longest // 2],
            seed=job.seed,
            sampling=Sampling(temperature=1.0),
            max_tokens=min(job.max_tokens, longest // 2 - 1),
            to_boundary=False,
        )
        for job in make_jobs(total, seed)
    ]


async def draw(request: ExtendRequest) -> tuple[tuple[int, ...], tuple[float, ...], float, float]:
    """Returns token ids, their log-probabilities, and seconds to the first and the last of them."""
    from flashedge.engine.vllm.generator import build_params

    changes = {"stop_token_ids": [], "ignore_eos": True}
    params = build_params(request, _generator.codec, _generator.max_model_len, **changes)
    ids: list[int] = []
    logprobs: list[float] = []
    began, first_s = time.perf_counter(), 0.0
    async with aclosing(_generator.stream(request, params)) as stream:
        async for chunk in stream:
            first_s = first_s or time.perf_counter() - began
            ids += chunk.token_ids
            logprobs += chunk.logprobs
    return tuple(ids), tuple(logprobs), first_s, time.perf_counter() - began


async def read_counters() -> dict[str, int]:
    return dict((await _generator.view()).replays)


async def count_since(before: Mapping[str, int]) -> dict[str, int]:
    return {name: n - before[name] for name, n in (await read_counters()).items()}


def time_kernels(batch_invariant: bool, sizes: Sequence[int], width: int) -> list[dict[str, Any]]:
    """Microseconds of a down projection and of an RMSNorm by rows, as in Fig. 4. width: of the
    model; its feed-forward network is 3.5 times as wide."""
    os.environ["VLLM_BATCH_INVARIANT"] = str(int(batch_invariant))
    import torch

    on_cpu = runs_on_cpu()
    device = "cpu" if on_cpu else "cuda"
    weight = torch.randn(width, 7 * width // 2, dtype=torch.bfloat16, device=device)
    scale = torch.ones(width, dtype=torch.bfloat16, device=device)

    def norm(x: torch.Tensor) -> object:
        if on_cpu:
            return torch.nn.functional.rms_norm(x, (width,), scale, 1e-6)
        from vllm import _custom_ops
        from vllm.model_executor.determinism import batch_invariant as kernels

        if batch_invariant:
            return kernels.rms_norm_batch_invariant(x, scale, 1e-6)
        return _custom_ops.rms_norm(torch.empty_like(x), x, scale, 1e-6)

    linear: Callable[..., object] = torch.nn.functional.linear
    if batch_invariant:  # linear layers call it themselves (vllm/model_executor/layers/linear.py)
        from vllm.model_executor.determinism import batch_invariant as kernels

        kernels.init_batch_invariance()
        linear = kernels.linear_batch_invariant
    found: list[dict[str, Any]] = []
    wait = (lambda: None) if on_cpu else torch.cuda.synchronize
    for rows in sizes:
        wide = torch.randn(rows, weight.shape[1], dtype=torch.bfloat16, device=device)
        narrow = torch.randn(rows, width, dtype=torch.bfloat16, device=device)
        row: dict[str, Any] = {"batch_invariant": batch_invariant, "rows": rows}
        row["linear_us"] = time_us(partial(linear, wide, weight), wait)
        row["norm_us"] = time_us(partial(norm, narrow), wait)
        found.append(row)
    return found


def time_us(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Microseconds of a call. wait: until the device is done."""
    for _ in range(5):
        work()
    wait()
    began = time.perf_counter()
    for _ in range(20):
        work()
    wait()
    return 1e6 * (time.perf_counter() - began) / 20


# ---------------------------------------------------------------- the whole


def open_pool(stack: ExitStack) -> ProcessPoolExecutor:
    return stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))


def measure(asked: argparse.Namespace, results: Results, file: Path) -> None:
    with ExitStack() as stack:
        kinds = (False,) if runs_on_cpu() else (False, True)
        pools = {kind: open_pool(stack) for kind in kinds}
        tests: dict[bool, Any] = {}
        try:
            for k, pool in pools.items():  # in turn, since each looks how much memory is free
                tests[k] = pool.submit(start, asked.pair, asked.kv_bytes, k).result()
            cases: list[dict[str, Any]] = []
            for kind, pool in pools.items():
                shape = tests[kind]["replay_shape"]
                for flag in (False, True) if shape and not kind else (False,):
                    about = {"batch_invariant": kind, "shape": shape}
                    found = pool.submit(compare_bits, asked.alone, flag).result()
                    cases.append(about | found)
                    results.add("cases", cases)
            has_shape = bool(tests[False]["replay_shape"])
            run_rounds(asked, results, file, pools, shares=SHARES if has_shape else SHARES[:1])
        finally:
            for kind in tests:
                pools[kind].submit(stop).result()


def run_rounds(
    asked: argparse.Namespace,
    results: Results,
    file: Path,
    pools: Mapping[bool, ProcessPoolExecutor],
    shares: Sequence[int],
) -> None:
    """Let the ways take turns, in reverse in every second round, until the time or the rounds are
    over, but for two rounds."""
    names = ("requests", "round", "percent", "way")
    known = {tuple(row[name] for name in names) for row in read_rows(file)}
    longest_s = 0.0
    for pool in pools.values():
        pool.submit(serve, asked.requests, 0, 999).result()  # warm-up
    for turn in count():
        order = -1 if turn % 2 else 1
        for percent in shares[::order]:
            for way in (PLAIN, ROLLBACK, INVARIANT)[::order]:
                if (key := (asked.requests, turn, percent, way)) in known:
                    continue
                out_of_time = results.seconds + longest_s > 60 * asked.minutes
                if turn >= asked.rounds or (out_of_time and turn > 1):
                    return
                pool = pools[max(pools) if way == INVARIANT else False]
                flagged = percent if way == ROLLBACK else 0
                row = pool.submit(serve, asked.requests, flagged, turn).result()
                longest_s = max(longest_s, row["seconds"])
                row = dict(zip(names, key, strict=True)) | row
                add_row(file, row)
                print(f"{results.seconds:7.1f} s  {json.dumps(row)}", flush=True)


def explain_no_room(asked: argparse.Namespace) -> str | None:
    """Say why the card does not hold two generators of the pair."""
    import torch

    card = torch.cuda.mem_get_info()[1]
    pair = find_pair(asked.pair, load_config())
    weights = find_pair_shapes(pair, load_config())[0].weights_bytes
    most = card // 2 - asked.kv_bytes - OTHER_BYTES
    if weights <= most:
        return None
    return (
        f"two generators of {asked.pair} do not fit the card: weights may take {most / 1e9:.1f} GB "
        f"and take {weights / 1e9:.1f}; choose a smaller pair or fewer --kv-bytes"
    )


def compare(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratios of each way and share to the default engine in the same round and turn:
    medians over rounds, and the bootstrap 95 % interval of the mean throughput."""
    plain = {(r["round"], r["percent"]): r for r in runs if r["way"] == PLAIN}
    for way in (ROLLBACK, INVARIANT):
        for percent in SHARES:
            rows = [r for r in runs if (r["way"], r["percent"]) == (way, percent)]
            pairs = [(plain[r["round"], percent], r) for r in rows]
            if not pairs:
                continue
            found = {name: median(b[name] / a[name] for a, b in pairs) for name in RATIOS}
            low, high = interval([b["tokens_per_s"] / a["tokens_per_s"] for a, b in pairs])
            counters = ("stock_steps", "shared_steps", "rollbacks", "recomputed_tokens")
            yield {
                "way": way,
                "percent": percent,
                "rounds": len(rows),
                **found,
                "from": low,
                "to": high,
                **{name: sum(r[name] for r in rows) for name in counters},
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", help="default: the setting `pair`")
    parser.add_argument("--requests", type=int, default=32, help="of a run")
    parser.add_argument("--alone", type=int, default=8, help="requests whose bits are compared")
    parser.add_argument("--rounds", type=int, default=20, help="at most")
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="no round begins later, but for two"
    )
    parser.add_argument("--kv-bytes", **KV_OPTION)
    parser.add_argument("--output", type=Path, help="default: runs/determinism-PAIR")
    asked = parse_arguments(parser, requests=2, alone=1, rounds=1)
    asked.pair = load_config({"pair": asked.pair}).pair
    if runs_on_cpu():
        asked.kv_bytes = min(asked.kv_bytes, 1 << 28)
    elif why := explain_no_room(asked):
        parser.error(why)
    folder = make_folder((asked.output or ROOT / "runs" / f"determinism-{asked.pair}").resolve())
    results = Results(folder / "determinism.json", asked.pair)
    measure(asked, results, file := folder / "runs.jsonl")
    sizes, width = ((1, 8), 64) if runs_on_cpu() else ((1, 8, 64, 256, 1024, 4096), 4096)
    with ExitStack() as stack:
        kernels = [
            row
            for kind in ((False,) if runs_on_cpu() else (False, True))
            for row in open_pool(stack).submit(time_kernels, kind, sizes, width).result()
        ]
    results.add("kernels", kernels)
    runs = [row for row in read_rows(file) if row["requests"] == asked.requests]
    ways = list(compare(runs))
    for rows in (ways, kernels):
        print(format_table(list(rows[0]), [list(row.values()) for row in rows]))
    report(cases=results.found["cases"], ways=ways, kernels=kernels)


if __name__ == "__main__":
    main()
