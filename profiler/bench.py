"""Measure the device alone: GEMM peak for each dtype, memory, transfers, launch overhead.

    python -m flashedge.profiler.bench KIND THREADS SECONDS

The benchmark is a separate process, so that its caller gets no CUDA context (half a GiB of the
card) and keeps its thread count. It prints JSON lines, such as {"progress": 0.4, "what":
"GEMM bfloat16 512"}, and {"figures": {...}} as the last one.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from flashedge.profiler import ProfileError

COMMAND = (sys.executable, "-P", "-m", "flashedge.profiler.bench")
DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16", "float16")}
SIZES = {"cpu": (256, 512, 1024), "cuda": (1024, 2048, 4096, 8192)}
"""The n of the n x n matrices. The largest reach the peak; the roofline's plot shows them all."""
COPY_BYTES = {"cpu": (64 << 20, 256 << 20), "cuda": (256 << 20, 1 << 30)}
"""The largest copy gives the memory's bandwidth, since it exceeds the usual caches."""
TRANSFER_BYTES = 256 << 20
"""Their transfer takes milliseconds, so that its launch of a few microseconds does not count."""
LAUNCHES = 200
"""They fit into CUDA's queue, which holds about 1,000, so that no launch waits for room in it."""
LAUNCH_S = 0.1
"""Seconds in which one tiny operation of some microseconds is timed again and again."""
START_S = 120.0
"""Limit for the import of torch, the first answer of the device, and what exceeds `limit_s`.
Chosen by hand: a cold disk takes tens of seconds, and a user waits no twenty minutes."""

Progress = Callable[[float, str], None]
"""Receives the share in [0, 1] that is done, and what is measured now."""


def measure_device(
    kind: str, threads: int, limit_s: float, on_progress: Progress
) -> dict[str, Any]:
    """Run `bench` in a separate process. Raises ProfileError when that process fails or hangs."""
    command = [*COMMAND, kind, str(threads), str(limit_s)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    most_s, began = START_S + limit_s, time.monotonic()
    figures = None
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        watchdog = threading.Timer(most_s, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue  # from a library, as with ONEDNN_VERBOSE
                message = json.loads(line)
                figures = message.get("figures", figures)
                if "progress" in message:
                    on_progress(message["progress"], message["what"])
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if figures is None:
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        if time.monotonic() - began >= most_s:
            reason = f"the benchmark did not end within {most_s:.0f} s"
        raise ProfileError(f"the device could not be measured: {reason}")
    return dict(figures)


def bench(torch: Any, kind: str, limit_s: float, on_progress: Progress) -> dict[str, Any]:
    """Measure all figures in about `limit_s` after the import of torch. kind: "cpu" or "cuda".

    Returns plain JSON values. gemm, copies and transfers are lists of these objects:

    gemm          {dtype, n, seconds, flops_per_s} of n x n x n products
    copies        {bytes, bytes_per_s}, where the rate counts reading and writing
    transfers     {direction, pinned, bytes_per_s}, on CUDA only
    launch_s      seconds to enqueue one tiny operation
    round_trip_s  seconds to enqueue it and wait for its end
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
    figures: dict[str, Any] = {"gemm": [], "copies": [], "transfers": []}
    figures |= _measure_launch(torch, kind)
    measures: dict[str, Callable[..., dict[str, Any]]]
    measures = {"gemm": _measure_gemm, "copies": _measure_copy, "transfers": _measure_transfer}
    for done, (what, section, arguments) in enumerate(work):
        on_progress(done / len(work), what)
        figures[section].append(measures[section](torch, kind, share_s, *arguments))
    return figures


def _measure_gemm(torch: Any, kind: str, share_s: float, dtype: str, n: int) -> dict[str, Any]:
    a = torch.randn(n, n, device=kind).to(getattr(torch, dtype))
    out = torch.empty_like(a)
    seconds = _time_best(torch, lambda: torch.mm(a, a, out=out), kind, share_s)
    return {"dtype": dtype, "n": n, "seconds": seconds, "flops_per_s": 2 * n**3 / seconds}


def _measure_copy(torch: Any, kind: str, share_s: float, size: int) -> dict[str, Any]:
    source = torch.zeros(size, dtype=torch.uint8, device=kind)
    target = torch.zeros_like(source)
    seconds = _time_best(torch, lambda: target.copy_(source), kind, share_s)
    return {"bytes": size, "bytes_per_s": 2 * size / seconds}


def _measure_transfer(
    torch: Any, kind: str, share_s: float, way: str, pinned: bool
) -> dict[str, Any]:
    host = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, pin_memory=pinned)
    device = torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, device=kind)
    source, target = (host, device) if way == "host to device" else (device, host)
    seconds = _time_best(torch, lambda: target.copy_(source, non_blocking=pinned), kind, share_s)
    return {"direction": way, "pinned": pinned, "bytes_per_s": TRANSFER_BYTES / seconds}


def _measure_launch(torch: Any, kind: str) -> dict[str, float]:
    one = torch.zeros(1, device=kind)
    _time_best(torch, lambda: one.add_(1), kind, LAUNCH_S)
    enqueued = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            one.add_(1)
        enqueued.append((time.perf_counter() - began) / LAUNCHES)
        _wait(torch, kind)
    round_trip_s = _time_best(torch, lambda: one.add_(1), kind, LAUNCH_S)
    return {"launch_s": min(enqueued), "round_trip_s": round_trip_s}


def _time_best(torch: Any, act: Callable[[], object], kind: str, share_s: float) -> float:
    """Return the shortest time in seconds of `act` with its device work. It runs for `share_s`,
    and at least 3 times."""
    act()
    _wait(torch, kind)
    until, best, tries = time.perf_counter() + share_s, float("inf"), 0
    while tries < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        act()
        _wait(torch, kind)
        best = min(best, time.perf_counter() - began)
        tries += 1
    return best


def _wait(torch: Any, kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    kind, threads, limit_s = sys.argv[1:]

    def report(progress: float, what: str) -> None:
        print(json.dumps({"progress": progress, "what": what}), flush=True)

    report(0.0, "starting")
    import torch

    torch.set_num_threads(int(threads))
    print(json.dumps({"figures": bench(torch, kind, float(limit_s), report)}), flush=True)


if __name__ == "__main__":
    main()
