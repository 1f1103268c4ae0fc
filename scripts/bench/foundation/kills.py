"""`kill -9` of the generator's process and of the daemon in mid-run: who sees what, what stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import httpx
import psutil

from scripts.bench.daemon import CLI, Daemon, daemon, problems, report


def main() -> None:
    items = [p["problem"] for p in problems("heldout", 8)]
    with daemon() as served:
        quiet = served.solve(items[0], "-n", "64", "--seed", "1")
        engine = engine_death(served, items[0], quiet)
        print(engine)
        death = daemon_death(served, items)
    report(engine=engine, daemon=death)


def engine_death(served: Daemon, problem: str, quiet: dict) -> dict[str, object]:
    """What a client sees whose generator dies, and how long until the next solve is answered."""
    pid = status(served)["engines"]["generator"]["pid"]
    client = solving(served, problem, "-n", "64", "--seed", "1")
    wait_for_tokens(served)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    noticed = None
    while noticed is None:
        if status(served)["engines"]["generator"]["state"] != "ready":
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
        "restarts": status(served)["engines"]["generator"]["restarts"],
    }


def daemon_death(served: Daemon, items: list[str]) -> dict[str, object]:
    """Which runs the store has after the daemon is killed with one finished and one under way."""
    done = served.solve(items[1], "-n", "4")
    client = solving(served, items[0], "-n", "256", "--seed", "2")
    wait_for_tokens(served)
    children = psutil.Process(served.pid).children(recursive=True)
    os.kill(served.pid, signal.SIGKILL)
    out, err = client.communicate()
    _, alive = psutil.wait_procs(children, timeout=5)
    up = served.cli("up", "--json")
    listing = json.loads(served.cli("runs", "ls", "--json").stdout)
    rows = listing["data"] if isinstance(listing, dict) else listing
    cut = next(r for r in rows if r["status"] == "interrupted")
    kept = served.cli("runs", "show", cut["id"], "--json")
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


def solving(served: Daemon, problem: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CLI, "solve", "--json", *args, "--", problem],
        env=served.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def status(served: Daemon) -> dict:
    return httpx.get(f"{served.url}/v1/status", timeout=10).json()


def wait_for_tokens(served: Daemon) -> None:
    """Until the generator is in the middle of a decode."""
    while True:
        view = status(served)["engines"]["generator"].get("view")
        if view and view["running"] >= 8:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
