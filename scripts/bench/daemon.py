"""A daemon of our own for a measurement: temporary home, free port, gone at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
CLI = (sys.executable, "-m", "flashedge")


@dataclass(frozen=True)
class Daemon:
    """url: where it listens; pid: its process; env: what makes the CLI reach it."""

    url: str
    pid: int
    env: dict[str, str]

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *args], env=self.env, capture_output=True, text=True, check=False
        )

    def solve(self, problem: str, *args: str) -> dict[str, Any]:
        """`flashedge solve --json`. Raises RuntimeError with what it said when it fails."""
        done = self.cli("solve", "--json", *args, "--", problem)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def daemon(**settings: object) -> Iterator[Daemon]:
    """Start one and wait until it serves; `settings` are Config fields."""
    with tempfile.TemporaryDirectory(prefix="flashedge-bench-") as home:
        env = {
            **os.environ,
            "FLASHEDGE_HOME": home,
            "FLASHEDGE_PORT": str(free_port()),
            **{f"FLASHEDGE_{k.upper()}": str(v) for k, v in settings.items()},
        }
        up = subprocess.run([*CLI, "up", "--json"], env=env, capture_output=True, text=True)
        if up.returncode:
            raise RuntimeError(up.stderr)
        found = json.loads(up.stdout)
        try:
            yield Daemon(found["url"], found["pid"], env)
        finally:
            subprocess.run([*CLI, "down"], env=env, capture_output=True, check=False)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def problems(name: str, count: int) -> list[dict[str, str]]:
    """The first `count` lines of tests/data/{name}.jsonl."""
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def report(**figures: object) -> None:
    """The last line of every measurement."""
    print(json.dumps(figures))
