"""`tui`: the dashboard, attached to the running daemon."""

from __future__ import annotations

import os
import sys

from flashedge.cli import output
from flashedge.cli.connection import show_start
from flashedge.config import load_config
from flashedge.errors import ConfigError


def tui() -> None:
    """Watch runs live: trees, certainty, rates, memory.

    Starts the daemon if none runs.
    """
    check_terminal()
    with output.stderr().status("opening the dashboard"):
        from flashedge.client.async_client import AsyncClient
        from flashedge.daemon import control as daemon_control
        from flashedge.tui.app import DashboardApp

    config = load_config()
    record = daemon_control.find(config)
    if record is None:
        with show_start() as show:
            record = daemon_control.ensure(config, on_state=show)
    client = AsyncClient(record.url, api_key=config.api_key, name="dashboard")
    DashboardApp(client, theme_file=config.state_dir / "dashboard-theme").run()


def check_terminal() -> None:
    """Raises ConfigError where a full-screen program can't draw."""
    if os.environ.get("TERM") == "dumb":
        reason = "TERM is dumb"
    elif not sys.stdin.isatty() or not sys.stdout.isatty():
        reason = "standard input and output must be a terminal"
    else:
        return
    raise ConfigError(
        f"the dashboard needs a full-screen terminal: {reason}",
        hint="without one use `flashedge runs ls` and `flashedge runs show RUN --tree`",
    )
