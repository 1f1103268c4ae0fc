"""The device by itself: GEMM peak a dtype, memory, host<->device, launch. Runs as a process:

    python -m flashedge.profiler.bench --kind cpu --threads 1 --limit 6

so that nobody's process gets a CUDA context (half a GiB of the card) or other thread counts. It
prints JSON lines: {"progress": 0.4, "what": "GEMM bfloat16"} and at last {"figures": {...}}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from flashedge.profiler.errors import ProfileError

COMMAND = (sys.executable, "-P", "-m", "flashedge.profiler.bench")
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16", "float16")}
SIZES = {"cpu": (256, 512, 1024), "cuda": (1024, 2048, 4096, 8192)}
COPY_BYTES = {"cpu": (64 << 20, 256 << 20), "cuda": (256 << 20, 1 << 30)}
TRANSFER_BYTES = 256 << 20
LAUNCHES = 200
START_S = 120.0  # for torch's import and the device's first answer

Progress = Callable[[float, str], None]


def measure_device(
    kind: str, threads: int, limit_s: float, on_progress: Progress
) -> dict[str, Any]:
    """The figures of `bench`, measured in a process of its own.

    Raises ProfileError when that process fails.
    """
    command = [*COMMAND, "--kind", kind, "--threads", str(threads), "--limit", str(limit_s)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        figures = None
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            figures = told.get("figures", figures)
            if "progress" in told:
                on_progress(told["progress"], told["what"])
        _, errors = process.communicate(timeout=START_S)
    finally:
        process.kill()
        process.wait()
    if figures is None:
        said = errors.strip().splitlines()
        why = said[-1] if said else f"exit code {process.returncode}"
        raise ProfileError(f"the device could not be measured: {why}")
    return dict(figures)


def bench(kind: str, limit_s: float, on_progress: Progress) -> dict[str, Any]:
    """All figures, in about `limit_s` beyond the import of torch: plain JSON values.

    gemm: {dtype, n, seconds, flops_per_s} of n x n x n products; copies: {bytes, bytes_per_s},
    reading and writing counted; transfers (CUDA only): {direction, pinned, bytes_per_s};
    launch_s: one tiny operation, enqueued; round_trip_s: enqueued and waited for.
    """
    work = [
        *((f"GEMM {d} {n}", "gemm", (d, n)) for n in SIZES[kind] for d in DTYPES[kind]),
        *((f"copy of {size >> 20} MiB", "copies", (size,)) for size in COPY_BYTES[kind]),
    ]
    if kind == "cuda":
        work += [
            (f"{way}, {'pinned' if pinned else 'pageable'}", "transfers", (way, pinned))
            for way in ("host to device", "device to host")
            for pinned in (True, False)
        ]
    share_s = limit_s / (len(work) + 1)
    figures: dict[str, Any] = {"gemm": [], "copies": [], "transfers": [], **_launch(kind)}
    measures: dict[str, Callable[..., dict[str, Any]]]
    measures = {"gemm": _gemm, "copies": _copy, "transfers": _transfer}
    for done, (what, section, arguments) in enumerate(work):
        on_progress(done / len(work), what)
        figures[section].append(measures[section](kind, share_s, *arguments))
    return figures


def _gemm(kind: str, share_s: float, dtype: str, n: int) -> dict[str, Any]:
    import torch

    a = torch.randn(n, n, device=kind).to(getattr(torch, dtype))
    out = torch.empty_like(a)
    seconds = _best(lambda: torch.mm(a, a, out=out), kind, share_s)
    return {"dtype": dtype, "n": n, "seconds": seconds, "flops_per_s": 2 * n**3 / seconds}


def _copy(kind: str, share_s: float, size: int) -> dict[str, Any]:
    import torch

    source = torch.zeros(size, dtype=torch.uint8, device=kind)
    target = torch.zeros_like(source)
    seconds = _best(lambda: target.copy_(source), kind, share_s)
    return {"bytes": size, "bytes_per_s": 2 * size / seconds}


def _transfer(kind: str, share_s: float, way: str, pinned: bool) -> dict[str, Any]:
    import torch

    host = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, pin_memory=pinned)
    device = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, device=kind)
    source, target = (host, device) if way == "host to device" else (device, host)
    seconds = _best(lambda: target.copy_(source, non_blocking=pinned), kind, share_s)
    return {"direction": way, "pinned": pinned, "bytes_per_s": TRANSFER_BYTES / seconds}


def _launch(kind: str) -> dict[str, float]:
    import torch

    one = torch.zeros(1, device=kind)

    def many() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)

    _best(lambda: one.add_(1), kind, 0.1)
    enqueued = []
    for _ in range(5):
        began = time.perf_counter()
        many()
        enqueued.append((time.perf_counter() - began) / LAUNCHES)
        _wait(kind)
    return {"launch_s": min(enqueued), "round_trip_s": _best(lambda: one.add_(1), kind, 0.1)}


def _best(act: Callable[[], object], kind: str, share_s: float) -> float:
    """Least seconds of `act`, device work included; at least 3 tries, then until `share_s`."""
    act()
    _wait(kind)
    until, best, tries = time.perf_counter() + share_s, float("inf"), 0
    while tries < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        act()
        _wait(kind)
        best = min(best, time.perf_counter() - began)
        tries += 1
    return best


def _wait(kind: str) -> None:
    if kind == "cuda":
        import torch

        torch.cuda.synchronize()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flashedge.profiler.bench", description=__doc__)
    parser.add_argument("--kind", choices=sorted(DTYPES), required=True)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--limit", type=float, default=6.0, help="seconds")
    given = parser.parse_args()

    def tell(progress: float, what: str) -> None:
        print(json.dumps({"progress": progress, "what": what}), flush=True)

    tell(0.0, "starting")
    with _threads(given.threads):
        print(json.dumps({"figures": bench(given.kind, given.limit, tell)}), flush=True)


if __name__ == "__main__":
    main()
