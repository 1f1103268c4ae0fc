"""Seconds from the command to `/health` 200, and the memory of daemon and engines (RSS, PSS)."""

from __future__ import annotations

import statistics
import time

import psutil

from scripts.bench.daemon import daemon, problems, report

TIMES = 3


def main() -> None:
    seconds, memory = [], {}
    for _ in range(TIMES):
        began = time.monotonic()
        with daemon() as served:
            seconds.append(time.monotonic() - began)
            served.solve(problems("heldout", 1)[0]["problem"], "-n", "16")
            memory = sizes(served.pid)
        print(round(seconds[-1], 1), memory)
    report(
        start_s=[round(s, 1) for s in seconds],
        median_s=round(statistics.median(seconds), 1),
        memory_mb=memory,
    )


def sizes(pid: int) -> dict[str, float]:
    """MB of every process of the daemon. PSS counts shared pages once in all: it adds up."""
    top = psutil.Process(pid)
    whole = [top, *top.children(recursive=True)]
    infos = [(p, p.memory_full_info()) for p in whole]
    found = {f"{p.name()} {p.pid} rss": round(i.rss / 1e6) for p, i in infos}
    found["sum of rss"] = round(sum(i.rss for _, i in infos) / 1e6)
    found["sum of pss"] = round(sum(i.pss for _, i in infos) / 1e6)
    return found


if __name__ == "__main__":
    main()
