"""How a command reaches the daemon, starting one if none runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from flashedge.cli import output
from flashedge.config import Config


def connect_ready(config: Config) -> Any:
    """A client of a ready daemon, which is started if none runs.

    Raises what `daemon.control.ensure` raises.
    """
    from flashedge.cli.profile import renew_profile
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import find_holder

    if daemon_control.find(config) is None:
        if find_holder(config) is None:
            renew_profile(config)
        with show_start() as show:
            daemon_control.ensure(config, on_state=show)
    else:
        daemon_control.ensure(config)
    return daemon_control.connect(config)


@contextlib.contextmanager
def show_start() -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while the daemon starts. Call the value with the daemon's state."""
    console = output.stderr()
    if not console.is_terminal:
        output.note("starting the daemon")
        yield lambda state: None
        return
    began = time.monotonic()
    with console.status("starting the daemon") as spinner:
        yield lambda state: spinner.update(
            f"starting the daemon: {state} ({time.monotonic() - began:.0f} s)"
        )
