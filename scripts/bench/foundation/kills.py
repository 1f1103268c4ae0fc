"""What does a user see after `kill -9` of the generator's process, or of the daemon, during a run?

    python -m scripts.bench.foundation.kills

Processes die on users' machines (out of memory, an impatient `kill`), and no answer may be lost or
changed by it. The script kills the generator during a solve and reports when the daemon notices,
when the next solve is answered, and whether the tree is the same as without the kill. Then it kills
the daemon with one run finished and one under way, and reports which runs the store still has. The
last line is JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import httpx
import psutil

from scripts.bench.daemon import CLI, Daemon, read_problems, report, start_daemon


def main() -> None:
    items = [p["problem"] for p in read_problems("heldout", 8)]
    with start_daemon() as served:
        quiet = served.solve(items[0], "-n", "64", "--seed", "1")
        engine = kill_engine(served, items[0], quiet)
        print(engine)
        death = kill_daemon(served, items)
    report(engine=engine, daemon=death)


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
