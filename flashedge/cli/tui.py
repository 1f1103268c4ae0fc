"""`tui`: the dashboard, attached to the running daemon."""

from __future__ import annotations

from flashedge.cli.daemon_cmds import waiting
from flashedge.config import load_config


def tui() -> None:
    """Watch runs live: trees, certainty, rates, memory. Starts the daemon if none runs."""
    from flashedge.client.async_client import AsyncClient
    from flashedge.daemon import control as daemon_control
    from flashedge.tui.app import DashboardApp

    config = load_config()
    record = daemon_control.find(config)
    if record is None:
        with waiting() as say:
            record = daemon_control.ensure(config, on_state=say)
    DashboardApp(AsyncClient(record.url, api_key=config.api_key)).run()
