"""Does the daemon live through an hour of everything at once?

    python -m scripts.bench.foundation.mixed_load [--minutes 60] [--clients 4] [--kills 30]

Clients make requests of all kinds (`load_actions`): plain and streamed, tools, schemas, searches,
bad ones, and ones that they leave in the middle. Now and then an engine is killed. Open files and
memory (PSS over all processes of the daemon) are read before and after, and every minute. A leak
would show as a slope, so the second half is compared with the first. The last line is JSON: answers
that no client should get, runs that failed, and KV blocks that nobody frees must be 0.
"""

import argparse
import asyncio
import os
import random
import signal
import statistics
import time
from collections import Counter
from typing import Any

import httpx
import psutil

from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.foundation.load_actions import Actions

WARM_UP_S = 60.0
SETTLE_S = 20.0
SAMPLE_S = 60.0
ENGINES = ("generator", "verifier")
PAGE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--kills", type=int, default=30, help="of engines, at random times")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with start_daemon() as served:
        report(**asyncio.run(load(served, options)))


async def load(served: Daemon, options: argparse.Namespace) -> dict[str, Any]:
    problems = [row["problem"] for row in read_problems("heldout_easy", 50)]
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=served.url, timeout=600, limits=limits) as client:
        actions = [
            Actions(client, problems, options.seed * 1000 + i) for i in range(options.clients)
        ]
        await run_clients(actions, WARM_UP_S)
        await asyncio.sleep(SETTLE_S)
        before = measure_processes(served.pid)
        duration_s = options.minutes * 60
        kills = asyncio.create_task(kill_engines(client, options.kills, duration_s, options.seed))
        samples = asyncio.create_task(sample(served.pid, duration_s))
        await run_clients(actions, duration_s)
        killed = await kills
        rows = await samples
        await asyncio.sleep(SETTLE_S)
        after = measure_processes(served.pid)
        return {
            "minutes": options.minutes,
            **describe_answers(actions),
            "kills": killed,
            "runs": await count_runs(client),
            "blocks_held": await count_blocks(client),
            "before": before,
            "after": after,
            "medians_by_half": compare_halves(rows),
        }


async def run_clients(actions: list[Actions], seconds: float) -> None:
    """Let each client make requests one after the other until the time is over."""
    until = time.monotonic() + seconds

    async def go_on(client: Actions) -> None:
        while time.monotonic() < until:
            await client.make_one()

    await asyncio.gather(*(go_on(client) for client in actions))


async def kill_engines(client: httpx.AsyncClient, times: int, seconds: float, seed: int) -> int:
    """Kill an engine at random times; both get their turn. Returns how many were killed."""
    draw, killed, began = random.Random(seed), 0, time.monotonic()
    for moment in sorted(draw.random() * seconds for _ in range(times)):
        await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
        engines = (await client.get("/v1/status")).json()["engines"]
        engine = engines[draw.choice(ENGINES)]
        if engine["state"] == "ready":
            os.kill(engine["pid"], signal.SIGKILL)
            killed += 1
    return killed


def measure_processes(pid: int) -> dict[str, int]:
    """Open files, threads and PSS in MiB over the daemon and all its descendants."""
    found = {"processes": 0, "open_files": 0, "threads": 0, "pss_mib": 0}
    root = psutil.Process(pid)
    found["daemon_open_files"] = root.num_fds()
    found["daemon_pss_mib"] = root.memory_full_info().pss >> 20
    for process in (root, *root.children(recursive=True)):
        try:
            found["open_files"] += process.num_fds()
            found["threads"] += process.num_threads()
            found["pss_mib"] += process.memory_full_info().pss >> 20
            found["processes"] += 1
        except psutil.NoSuchProcess:
            pass  # an engine that was just killed
    return found


async def sample(pid: int, seconds: float) -> list[dict[str, int]]:
    rows, until = [], time.monotonic() + seconds
    while time.monotonic() + SAMPLE_S < until:
        await asyncio.sleep(SAMPLE_S)
        rows.append(await asyncio.to_thread(measure_processes, pid))
        print(rows[-1], flush=True)
    return rows


def compare_halves(rows: list[dict[str, int]]) -> dict[str, list[float]]:
    """Each figure's median over the first and over the second half of the time."""
    if len(rows) < 2:
        return {}
    middle = len(rows) // 2
    halves = (rows[:middle], rows[middle:])
    return {k: [statistics.median(row[k] for row in half) for half in halves] for k in rows[0]}


def describe_answers(actions: list[Actions]) -> dict[str, Any]:
    statuses: dict[str, Counter[int]] = {}
    for seen in (client.seen for client in actions):
        for action, counts in seen.statuses.items():
            statuses.setdefault(action, Counter()).update(counts)
    faults = [fault for client in actions for fault in client.seen.faults]
    return {
        "answers": sum(sum(counts.values()) for counts in statuses.values()),
        "clients_that_left": sum(client.seen.left for client in actions),
        "statuses": {action: dict(counts) for action, counts in sorted(statuses.items())},
        "faults": len(faults),
        "first_faults": faults[:20],
    }


async def count_runs(client: httpx.AsyncClient) -> dict[str, Any]:
    """The newest runs by their end, and why any failed."""
    runs = (await client.get("/v1/runs", params={"limit": PAGE})).json()["data"]
    failed = [run["id"] for run in runs if run["status"] not in ("finished", "cancelled")]
    reasons = [(await client.get(f"/v1/runs/{run}")).json().get("error") for run in failed[:10]]
    return {"ended": dict(Counter(run["status"] for run in runs)), "reasons": reasons}


async def count_blocks(client: httpx.AsyncClient) -> int:
    engines = (await client.get("/v1/status")).json()["engines"]
    return sum(engine["view"]["blocks_used"] for engine in engines.values())


if __name__ == "__main__":
    main()
