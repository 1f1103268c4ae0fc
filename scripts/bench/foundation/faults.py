"""What becomes of the runs when the engines under them are stopped, killed, or out of memory?

    python -m scripts.bench.foundation.faults [--times 100] [--n 8] [--hang-s 5] [--kinds KIND ...]

Processes die on users' machines (an impatient `kill`, a driver, a card that is full), and no answer
may be lost or changed by it. Each fault happens `--times` times under two runs of a daemon:

- an engine is stopped, so that it hangs
- an engine is killed while it generates, while it scores, while it is idle beside the other, and
  while KV memory moves between the engines
- the generator runs out of memory in a step

Reported for each: runs lost and trees changed by it (none may be), KV blocks that nobody frees
(none may be), and the seconds until the daemon serves again. Then the script asks once what a user
of the command line sees when the generator is killed during a solve, and when the daemon is killed
with one run finished and one under way. The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import time
from typing import Any

import httpx
import psutil

from scripts.bench.daemon import CLI, Daemon, read_problems, report, start_daemon
from scripts.bench.foundation.fault_schedule import FaultSchedule

FRAIL = "scripts.bench.foundation.frail_daemon"
PROBLEMS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=100, help="how often each fault happens")
    parser.add_argument("--n", type=int, default=8, help="paths of each run")
    parser.add_argument("--kinds", nargs="*", help="of the faults below, by their names; else all")
    parser.add_argument("--hang-s", type=float, default=5.0, help="the daemon's engine_hang_s")
    args = parser.parse_args()
    items = [p["problem"] for p in read_problems("heldout", 8)]
    began = time.monotonic()
    with start_daemon(FRAIL, engine_hang_s=args.hang_s) as served:
        faults = asyncio.run(
            repeat_faults(served, items[:PROBLEMS], args.n, args.times, args.kinds)
        )
        daemon = describe_daemon(served)
    with start_daemon() as served:
        quiet = served.solve(items[0], "-n", "64", "--seed", "1")
        engine = kill_engine(served, items[0], quiet)
        print(engine)
        death = kill_daemon(served, items)
    report(
        faults=faults,
        daemon=daemon,
        minutes=round((time.monotonic() - began) / 60, 1),
        engine_kill=engine,
        daemon_kill=death,
    )


async def repeat_faults(
    served: Daemon, items: list[str], n: int, times: int, kinds: list[str] | None
) -> dict[str, Any]:
    """Let each kind of fault happen so often. kinds: None for all.

    Raises ValueError for a kind that does not exist or can't happen here.
    """
    schedule = FaultSchedule(served.url, items, n)
    try:
        await schedule.prepare()
        if unknown := set(kinds or ()) - set(schedule.faults):
            raise ValueError(f"no faults {sorted(unknown)}; there are {list(schedule.faults)}")
        chosen = [name for name in schedule.faults if not kinds or name in kinds]
        return {name: (await schedule.repeat(name, times)).to_json() for name in chosen}
    finally:
        await schedule.close()


def describe_daemon(served: Daemon) -> dict[str, Any]:
    """Whether the daemon of all these faults still lives, and how it is."""
    if not psutil.pid_exists(served.pid):
        return {"alive": False}
    engines = read_status(served)["engines"]
    return {
        "alive": True,
        "rss_mib": psutil.Process(served.pid).memory_info().rss >> 20,
        "restarts": {name: engine["restarts"] for name, engine in engines.items()},
        "notice": engines["generator"]["notice"],
    }


def kill_engine(served: Daemon, problem: str, quiet: dict[str, Any]) -> dict[str, object]:
    """Kill the generator during a solve; report what the client sees and when service returns.

    quiet: the result of the same solve without a kill.
    """
    pid = read_status(served)["engines"]["generator"]["pid"]
    client = start_solve(served, problem, "-n", "64", "--seed", "1")
    wait_for_tokens(served)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    noticed = None
    while noticed is None:
        if read_status(served)["engines"]["generator"]["state"] != "ready":
            noticed = time.monotonic() - killed
    next_one = served.solve(problem, "-n", "4")
    answered = time.monotonic() - killed
    out, err = client.communicate()
    after = json.loads(out) if client.returncode == 0 else {}
    return {
        "client_exit": client.returncode,
        "client_error": err.strip()[-200:] if client.returncode else None,
        "same_tree_as_without": after.get("tree") == quiet["tree"],
        "noticed_s": round(noticed, 3),
        "next_solve_answered_s": round(answered, 2),
        "next_answer": next_one["answer"],
        "restarts": read_status(served)["engines"]["generator"]["restarts"],
    }


def kill_daemon(served: Daemon, items: list[str]) -> dict[str, object]:
    """Kill the daemon with one run finished and one under way; report what the store still has."""
    done = served.solve(items[1], "-n", "4")
    client = start_solve(served, items[0], "-n", "256", "--seed", "2")
    wait_for_tokens(served)
    children = psutil.Process(served.pid).children(recursive=True)
    os.kill(served.pid, signal.SIGKILL)
    out, err = client.communicate()
    _, alive = psutil.wait_procs(children, timeout=5)
    up = served.run_cli("up", "--json")
    listing = json.loads(served.run_cli("runs", "ls", "--json").stdout)
    rows = listing["data"] if isinstance(listing, dict) else listing
    cut = next(r for r in rows if r["status"] == "interrupted")
    kept = served.run_cli("runs", "show", cut["id"], "--json")
    again = served.solve(items[1], "-n", "4")
    return {
        "client_exit": client.returncode,
        "client_said": err.strip().splitlines()[-1] if err.strip() else out[-200:],
        "engines_left_running": len(alive),
        "restart_exit": up.returncode,
        "runs": {s: sum(r["status"] == s for r in rows) for s in {r["status"] for r in rows}},
        "finished_run_kept": any(r["id"] == done["id"] and r["answer"] for r in rows),
        "interrupted_run_shown": kept.returncode == 0,
        "solves_again": again["answer"] == done["answer"],
    }


def start_solve(served: Daemon, problem: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CLI, "solve", "--json", *args, "--", problem],
        env=served.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_status(served: Daemon) -> dict[str, Any]:
    status: dict[str, Any] = httpx.get(f"{served.url}/v1/status", timeout=10).json()
    return status


def wait_for_tokens(served: Daemon) -> None:
    """Wait until the generator is in the middle of a decode."""
    while True:
        view = read_status(served)["engines"]["generator"].get("view")
        if view and view["running"] >= 8:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
