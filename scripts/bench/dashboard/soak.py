"""512-path trees at 60 events a second into the dashboard: lag, memory, processor. See README.md.

Lag = from the daemon's append to the fold, and to the end of the next screen refresh (at most one
frame of 1/12 s later). The first seconds of each run, when six levels arrive at once, are
reported apart. The machine's load is reported too, since other programs add to the lag. The last
line is JSON.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

ROWS, COLUMNS = 60, 200
WARM_UP_S = 10.0  # the interpreter, and six levels at once
CATCH_UP_S = 10.0  # after a run begins: the dashboard finds it and reads six levels
MODULE = "scripts.bench.dashboard"


def percentile(values: list[float], part: float) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_daemon(url: str) -> None:
    for _ in range(200):
        try:
            httpx.get(f"{url}/v1/status", trust_env=False)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the benchmark's daemon did not start")


def watch(process: psutil.Process, terminal: int, until: float) -> tuple[list[list[float]], int]:
    """Read the terminal and sample [seconds, RSS MiB, CPU seconds] until then; bytes read."""
    since, samples, written, next_at = time.monotonic(), [], 0, 0.0
    while time.monotonic() < until and process.is_running():
        if select.select([terminal], [], [], 0.2)[0]:
            written += len(os.read(terminal, 1 << 16))
        now = time.monotonic() - since
        if now >= next_at:
            next_at += 1.0
            times = process.cpu_times()
            rss = process.memory_info().rss / (1 << 20)
            samples.append([now, rss, times.user + times.system])
    return samples, written


def drain(process: subprocess.Popen[bytes], terminal: int) -> None:
    """Quit the dashboard and read what it still writes."""
    os.write(terminal, b"q")
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            os.read(terminal, 1 << 16)
    process.wait(timeout=5)


def measure(minutes: float, n: int, per_s: float) -> dict[str, Any]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    daemon = subprocess.Popen(
        [sys.executable, "-m", f"{MODULE}.daemon", str(port), f"{n}", f"{per_s}"]
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        try:
            await_daemon(url)
            command = [sys.executable, "-m", f"{MODULE}.watcher", url, str(out)]
            env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            shown = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
            began = time.monotonic()
            until = began + WARM_UP_S + minutes * 60
            samples, written = watch(psutil.Process(shown.pid), master, until)
            drain(shown, master)
            sent_times = httpx.get(f"{url}/sent", trust_env=False, timeout=30).json()
        finally:
            daemon.terminate()
            daemon.wait(timeout=10)
        seen = json.loads(out.read_text())
    return report(samples, written, sent_times, seen, began + WARM_UP_S)


def report(
    samples: list[list[float]],
    written: int,
    sent_times: dict[str, Any],
    seen: dict[str, Any],
    after: float,
) -> dict[str, Any]:
    fold, paint, early = [], [], []
    for run, of_run in seen["times"].items():
        times = sent_times["sent"].get(run, {})
        for seq, folded, painted in zip(*[iter(of_run)] * 3, strict=True):
            sent = times.get(f"{seq:.0f}")
            if sent is None or sent <= after:
                continue
            if sent - min(times.values()) < CATCH_UP_S:
                early.append((folded - sent) * 1000)
                continue
            fold.append((folded - sent) * 1000)
            paint.append((painted - sent) * 1000)
    warm = [s for s in samples if s[0] >= WARM_UP_S]
    took = warm[-1][0] - warm[0][0]
    tenth = max(len(warm) // 10, 1)
    return {
        "minutes": round(took / 60, 2),
        "events": len(fold) + len(early),
        "events_per_s": round((len(fold) + len(early)) / took, 1),
        "catch_up_lag_ms": {p: round(percentile(early, q), 1) for p, q in RANKS.items()},
        "fold_lag_ms": {p: round(percentile(fold, q), 1) for p, q in RANKS.items()},
        "paint_lag_ms": {p: round(percentile(paint, q), 1) for p, q in RANKS.items()},
        "frames_per_s": round(seen["frames"] / samples[-1][0], 1),
        "cpu_share": round((warm[-1][2] - warm[0][2]) / took, 3),
        "rss_mib": {
            "first": round(statistics.mean(s[1] for s in warm[:tenth]), 1),
            "last": round(statistics.mean(s[1] for s in warm[-tenth:]), 1),
            "max": round(max(s[1] for s in warm), 1),
        },
        "rss_mib_over_time": [round(s[1], 1) for s in warm[:: max(len(warm) // 20, 1)]],
        "terminal_kib_per_s": round(written / 1024 / samples[-1][0], 1),
        "daemon_late_ms": round(sent_times["late_s"] * 1000, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }


RANKS = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--paths", type=int, default=512)
    parser.add_argument("--events-per-s", type=float, default=60.0)
    given = parser.parse_args()
    print(json.dumps(measure(given.minutes, given.paths, given.events_per_s)))


if __name__ == "__main__":
    main()
