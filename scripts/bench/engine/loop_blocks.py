"""How long does a search keep the daemon's event loop from doing anything else?

    python -m scripts.bench.engine.loop_blocks [--n 16 64 256] [--runs 2]

While a callback runs, the daemon answers nobody. The daemon of this script is the product's, with
a thread that asks its loop every 2 ms to answer, and one more route that returns and forgets what
it saw. An answer that takes longer than 1 ms is a block; what the loop does meanwhile is looked up
once, in the middle. The bundled pair solves problems by beam search. Printed for each n: the
longest blocks, with the time in which the loop's thread worked and the place in the code, and how
many there were. On a machine whose processors are all busy a block also counts the time in which
the thread did not run. The last line is JSON.
"""

import argparse
import asyncio
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon.process import App, main, make_app
from scripts.bench.daemon import ROOT, read_problems, report, start_daemon

ROUTE = "/loop"
PERIOD_S, LONG_S = 2e-3, 1e-3
SHOWN = 8


class LoopWatch:
    """Watches the event loop of this thread from another one."""

    def __init__(self) -> None:
        self.blocks: list[tuple[float, float, str]] = []
        """Seconds that an answer took, the processor's seconds of the loop's thread meanwhile, and
        where the loop was."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            answered = threading.Event()
            began, worked = time.perf_counter(), time.clock_gettime(self._clock)
            self._loop.call_soon_threadsafe(answered.set)
            where = ""
            if not answered.wait(LONG_S):
                where = find_place(sys._current_frames().get(self._thread))
                answered.wait()
            took = time.perf_counter() - began
            if took > LONG_S:
                self.blocks.append((took, time.clock_gettime(self._clock) - worked, where))
            time.sleep(PERIOD_S)

    def summarize(self) -> dict[str, Any]:
        blocks, self.blocks = self.blocks, []
        longest = sorted(blocks, reverse=True)[:SHOWN]
        return {
            "longest_ms": [
                [round(1e3 * took, 1), round(1e3 * worked, 1), where]
                for took, worked, where in longest
            ],
            "over_1_ms": len(blocks),
            "over_5_ms": sum(took > 5e-3 for took, _, _ in blocks),
            "worked_over_5_ms": sum(worked > 5e-3 for _, worked, _ in blocks),
        }


def find_place(frame: FrameType | None) -> str:
    """The innermost function of ours in a stack."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "flashedge"):
            return f"{path.relative_to(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def make_watched_app(config: Config, load: bool) -> App:
    app = make_app(config, load)
    watches: list[LoopWatch] = []

    async def read() -> dict[str, Any]:
        if not watches:
            watches.append(LoopWatch())
        return watches[0].summarize()

    app.add_api_route(ROUTE, read, methods=["POST"])
    return app


def measure(sizes: list[int], runs: int) -> None:
    problems = [item["problem"] for item in read_problems("heldout", runs)]
    found = {}
    with start_daemon("scripts.bench.engine.loop_blocks") as daemon, Client(daemon.url) as client:
        for n in sizes:
            httpx.post(daemon.url + ROUTE)
            for seed, problem in enumerate(problems):
                for _ in client.solve({"problem": problem, "n": n, "seed": seed}):
                    pass
            found[n] = httpx.post(daemon.url + ROUTE).json()
            print(n, found[n], flush=True)
    report(n=found, runs=runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--runs", type=int, default=2)
    asked, others = parser.parse_known_args()
    if others:  # the command line of a daemon
        sys.exit(main(make=make_watched_app))
    measure(asked.n, asked.runs)
