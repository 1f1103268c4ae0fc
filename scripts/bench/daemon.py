"""A daemon for one measurement, with a temporary home and a free port."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flashedge.cli.connection import connect_ready
from flashedge.config import Config, load_config
from flashedge.daemon import control
from scripts.bench.smoke import is_smoke

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
TEST_S = 300.0
"""Longest wait for the self-test."""
CLI = (sys.executable, "-m", "flashedge")
SIMULATED = "tests.support.sim_daemon"
"""A daemon whose engines are simulated."""


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    url: str
    pid: int

    env: dict[str, str]
    """The environment in which the CLI reaches this daemon."""

    def run_cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a `flashedge` command against this daemon."""
        return subprocess.run(
            [*CLI, *args], env=self.env, capture_output=True, text=True, check=False
        )

    def wait_tested(self) -> None:
        """Wait for the end of the self-test, if a pair is loaded. Raises TimeoutError."""
        until = time.monotonic() + TEST_S
        while time.monotonic() < until:
            status = httpx.get(f"{self.url}/v1/status").json()
            if status["self_test"] or not status["loaded"]:
                return
            time.sleep(0.1)
        raise TimeoutError("the self-test does not end")

    def solve(self, problem: str, *args: str) -> dict[str, Any]:
        """Run `flashedge solve --json`. Raises RuntimeError with its error output if it fails."""
        done = self.run_cli("solve", "--json", *args, "--", problem)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def start_daemon(
    module: str | None = None, *, profiled: bool = False, tested: bool = True, **settings: object
) -> Iterator[Daemon]:
    """Start a daemon, wait until it serves, and stop it at the end.

    module: runs instead of `flashedge.daemon`. profiled: measure the device first. With `--smoke`
    it is `SIMULATED` and not profiled. tested: wait for the end of the self-test, which
    works while nobody else does. settings: `Config` fields. Raises RuntimeError with the error
    output if the profile or the start fails, and for another module whatever `control` raises.
    """
    with tempfile.TemporaryDirectory(prefix="flashedge-bench-") as home:
        env = {
            **os.environ,
            "FLASHEDGE_HOME": home,
            "FLASHEDGE_PORT": str(find_free_port()),
            **{f"FLASHEDGE_{k.upper()}": str(v) for k, v in settings.items()},
        }
        try:
            if is_smoke():
                module = module or SIMULATED
            elif profiled:
                _run_cli(env, "profile", "--quick")
            if module is not None:
                daemon = _start_module(module, env, settings)
            else:
                found = json.loads(_run_cli(env, "up", "--json"))
                daemon = Daemon(found["url"], found["pid"], env)
            if tested:
                daemon.wait_tested()
            yield daemon
        finally:
            subprocess.run([*CLI, "down"], env=env, capture_output=True, check=False)


def start_usual_daemon(config: Config) -> None:
    """Start the daemon that the usual settings find, if none runs; with `--smoke` `SIMULATED`,
    which ends with this process."""
    if not is_smoke():
        connect_ready(config).close()
        return
    process = control.start(config, {}, (sys.executable, "-m", SIMULATED))

    def stop() -> None:  # before the temporary folder, in which it writes, is removed
        process.terminate()
        process.wait()

    atexit.register(stop)
    control.wait_ready(config, process)


def _run_cli(env: Mapping[str, str], *command: str) -> str:
    done = subprocess.run([*CLI, *command], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _start_module(module: str, env: dict[str, str], settings: Mapping[str, object]) -> Daemon:
    config = load_config(environ=env)
    given = {"port": config.port, "pair": config.pair, **settings}
    process = control.start(config, given, (sys.executable, "-m", module))
    record = control.wait_ready(config, process)
    return Daemon(record.url, record.pid, env)


def find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def read_problems(name: str, count: int) -> list[dict[str, str]]:
    """Read the first `count` lines of tests/data/{name}.jsonl."""
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def report(**figures: object) -> None:
    """Print the figures as JSON, the last line of every measurement."""
    print(json.dumps(figures))
