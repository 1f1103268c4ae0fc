"""`up`, `down`, `ps`, `logs`: the daemon's life."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.profile import renew
from flashedge.config import Config, load_config
from flashedge.errors import DaemonError, EngineError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def up(
    pair: Annotated[str | None, typer.Option(help="Pair to serve.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in front.")] = False,
    wait: Annotated[bool, typer.Option(help="Return only once it serves.")] = True,
    as_json: Json = False,
) -> None:
    """Start the daemon with both engines."""
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.process import check_exposure
    from flashedge.models.registry import find_pair

    given = {"pair": pair, "host": host, "port": port}
    config = load_config(given)
    find_pair(config.pair, config)
    check_exposure(config)
    if foreground:
        from flashedge.daemon.process import serve

        serve(config)
        return
    running = daemon_control.find(config)
    if running is not None:
        raise DaemonError(
            f"a daemon already runs at {running.url} (process {running.pid}, pair {running.pair})",
            hint="flashedge down stops it",
        )
    renew(config)
    process = daemon_control.start(config, given)
    if not wait:
        output.note(f"started process {process.pid}; flashedge ps says when it is ready")
        return
    try:
        with waiting() as say:
            record = daemon_control.wait_ready(config, process, on_state=say)
    except (EngineError, KeyboardInterrupt):
        daemon_control.stop(config)
        raise
    if as_json:
        output.print_json({"url": record.url, "pid": record.pid, "pair": record.pair})
    else:
        print(f"FlashEdge serves pair {record.pair} at {record.url}")


def down(as_json: Json = False) -> None:
    """Stop the daemon; what runs is cancelled."""
    from flashedge.daemon import control as daemon_control

    pid = daemon_control.stop(load_config())
    if as_json:
        output.print_json({"stopped": pid})
    elif pid is None:
        output.note("no daemon runs")
    else:
        print(f"stopped the daemon (process {pid})")


def ps(as_json: Json = False) -> None:
    """Show the daemon, its engines and how much they do."""
    from flashedge.daemon import control as daemon_control

    config = load_config()
    record = daemon_control.find(config)
    if record is None:
        if as_json:
            output.print_json({"daemon": None})
        else:
            output.note("no daemon runs; flashedge up starts one")
        return
    with daemon_control.connect(config) as client:
        health = client.health(timeout_s=5.0)
        status = client.status() if health["status"] != "starting" else {}
    if as_json:
        output.print_json(
            {"daemon": {**dataclasses.asdict(record), "url": record.url}, **status, **health}
        )
        return
    since = output.ago(time.time() - record.started_at)
    print(f"{health['status']}: pair {record.pair} at {record.url}, process {record.pid}, {since}")
    runs = status.get("runs") or {}
    print(f"{runs.get('running', 0)} runs, {runs.get('queued', 0)} waiting")
    engines = status.get("engines") or {}
    columns = ("engine", "state", "pid", "restarts", "running", "waiting", "KV blocks")
    output.print_table(columns, [_engine_row(*item) for item in engines.items()], "no engines yet")


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to begin with.")] = 50,
    engines: Annotated[
        bool, typer.Option("--engines", help="What the engine processes printed.")
    ] = False,
) -> None:
    """Show the daemon's log."""
    from flashedge.daemon.files import log_path, output_path

    config = load_config()
    path = output_path(config) if engines else log_path(config)
    if not path.exists():
        raise DaemonError(f"there is no log at {path}", hint="flashedge up writes one")
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in collections.deque(file, maxlen=lines):
            print(line, end="")
    if follow:
        _follow(path)


def _follow(path: Path) -> None:
    """Print what is appended, across rotations, until interrupted."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, 2)
    while True:
        line = file.readline()
        if line:
            print(line, end="", flush=True)
            continue
        time.sleep(0.2)
        if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            file.close()
            file = path.open(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """A spinner on stderr; its value says what the daemon waits for."""
    console = output.stderr()
    if not console.is_terminal:
        output.note("starting the daemon")
        yield lambda state: None
        return
    since = time.monotonic()
    with console.status("starting the daemon") as spinner:
        yield lambda state: spinner.update(
            f"starting the daemon: {state} ({time.monotonic() - since:.0f} s)"
        )


def ready_client(config: Config) -> Any:
    """A client of a ready daemon, started if none runs. Raises as `daemon_control.ensure`."""
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import holder

    if daemon_control.find(config) is None:
        if holder(config) is None:
            renew(config)
        with waiting() as say:
            daemon_control.ensure(config, on_state=say)
    else:
        daemon_control.ensure(config)
    return daemon_control.connect(config)


def _engine_row(name: str, engine: dict[str, Any]) -> tuple[object, ...]:
    view = engine.get("view") or {}
    blocks = f"{view['blocks_used']}/{view['quota_blocks']}" if view else None
    return (
        name,
        engine.get("state"),
        engine.get("pid"),
        engine.get("restarts"),
        view.get("running"),
        view.get("waiting"),
        blocks,
    )
