"""Runs `flashedge` commands against a daemon process whose engines are simulated.

Most commands run in the test's own process, because starting Python takes a second each time.
Those that get a signal run in a process of their own (`start_cli`).
"""

import io
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from flashedge.cli.main import main
from flashedge.config import Config, load_config
from flashedge.daemon import control
from tests.support.paths import ROOT

_IN_CHECKOUT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
SIMULATED = (sys.executable, "-c", _IN_CHECKOUT + "from tests.support.sim_daemon import run; run()")
"""Starts such a daemon."""
CLI = (sys.executable, "-c", "from flashedge.cli.main import run; run()")


def start_simulated(config: Config) -> subprocess.Popen[bytes]:
    """Start such a daemon, and wait until it serves."""
    process = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, process, timeout_s=60)
    return process


def url_of(config: Config) -> str:
    record = control.find_daemon(config)
    assert record is not None
    return record.url


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def start_cli(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*CLI, *arguments], stdout=pipe, stderr=pipe, text=True)


def list_runs(status: str | None = None) -> list[dict[str, Any]]:
    with control.connect(load_config()) as client:
        return list(client.runs(limit=1000, status=status)["data"])


def wait_for(condition: Any, timeout_s: float = 60.0) -> Any:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")
