"""How long does `flashedge up` take, and how much memory do the daemon and its engines use?

    python -m scripts.bench.foundation.startup

A user waits for the start before the first answer, and the memory is occupied as long as the daemon
runs. Three times, the script measures the seconds that a fresh process needs to import what an
engine needs of vLLM, the seconds until `flashedge up` returns and, after one solve of 16 paths, the
memory of every process. RSS counts a shared page in every process; PSS divides it
among them, so its sum is the real total. The last line is JSON.
"""

import statistics
import subprocess
import sys
import time

import psutil

from scripts.bench.daemon import read_problems, report, start_daemon

TIMES = 3
IMPORTS = "flashedge.engine.vllm.inside.preload"


def main() -> None:
    seconds, imports, memory = [], [], {}
    for _ in range(TIMES):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", f"import {IMPORTS}"], check=True, capture_output=True)
        imports.append(time.monotonic() - began)
        began = time.monotonic()
        with start_daemon(tested=False) as served:
            seconds.append(time.monotonic() - began)
            served.solve(read_problems("heldout", 1)[0]["problem"], "-n", "16")
            memory = measure_memory(served.pid)
        print(round(imports[-1], 1), round(seconds[-1], 1), memory)
    report(
        import_s=[round(s, 1) for s in imports],
        start_s=[round(s, 1) for s in seconds],
        median_s=round(statistics.median(seconds), 1),
        beside_import_s=round(
            statistics.median(s - i for s, i in zip(seconds, imports, strict=True)), 1
        ),
        memory_mb=memory,
    )


def measure_memory(pid: int) -> dict[str, float]:
    """Return the MB of every process of the daemon, and their sums."""
    top = psutil.Process(pid)
    processes = [top, *top.children(recursive=True)]
    infos = [(p, p.memory_full_info()) for p in processes]
    found = {f"{p.name()} {p.pid} rss": round(i.rss / 1e6) for p, i in infos}
    found["sum of rss"] = round(sum(i.rss for _, i in infos) / 1e6)
    found["sum of pss"] = round(sum(i.pss for _, i in infos) / 1e6)
    return found


if __name__ == "__main__":
    main()
