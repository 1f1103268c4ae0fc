"""`up`, `down`, `unload`, `logs`, `tui`: start, stop and watch the daemon."""

from __future__ import annotations

import collections
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from flashedge.cli import output
from flashedge.cli.connection import show_start
from flashedge.cli.output import Json
from flashedge.cli.profile import renew_profile
from flashedge.config import Config, check_exposure, load_config
from flashedge.engine.platform import runs_on_cpu
from flashedge.errors import CheckpointError, ConfigError, DaemonError, EngineError
from flashedge.sizes import format_size

if TYPE_CHECKING:
    from flashedge.daemon.files import DaemonRecord


def up(
    pair: Annotated[
        str | None,
        Option(
            metavar="PAIR",
            help="Pair to serve; auto: the one that fits this machine's card, downloaded first.",
            show_default="bundled",
        ),
    ] = None,
    host: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, Option(metavar="N", help="Port to listen on.", show_default="8642")
    ] = None,
    foreground: Annotated[bool, Option("--foreground", help="Run here until ctrl-c.")] = False,
    install: Annotated[
        bool, Option("--install", help="Let systemd start it now, at login, and when it fails.")
    ] = False,
    uninstall: Annotated[bool, Option("--uninstall", help="Stop it and undo --install.")] = False,
    wait: Annotated[bool, Option(help="Wait until the daemon is ready.")] = True,
    as_json: Json = False,
) -> None:
    """Start the daemon with both engines.

    `flashedge config` shows and sets the defaults of these options.

    Example: flashedge up --pair auto
    """
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon import unit
    from flashedge.models.registry import find_pair, name_pair

    if uninstall:
        path = unit.uninstall()
        output.note("there is no service to remove" if path is None else f"removed {path}")
        return
    if pair == "auto":
        # A running daemon holds the memory by which a pair would be chosen.
        running = daemon_control.find_daemon(load_config())
        pair = _fetch_fitting_pair(load_config()) if running is None else None
    given = {"pair": pair, "host": host, "port": port}
    config = name_pair(load_config(given))
    find_pair(config.pair, config)
    if pair is not None:
        given["pair"] = config.pair
    check_exposure(config)
    if foreground:
        command = [*daemon_control.PRODUCT, *daemon_control.list_options(config, given)]
        os.execv(command[0], command)
    running = daemon_control.find_daemon(config)
    if running is not None:
        differs = any(v not in (None, getattr(running, name)) for name, v in given.items())
        if install or differs:
            raise DaemonError(
                f"a daemon already runs at {running.url} (process {running.pid}, pair"
                f" {running.pair})",
                hint="stop it first: flashedge down",
            )
        if wait:
            with show_start() as show:
                running = daemon_control.ensure(config, on_state=show)
        _tell(running, "already serves", as_json=as_json)
        return
    renew_profile(config)
    if install:
        process = None
        output.note(f"installed {unit.install(config, given)}")
        output.note("It starts when you log in. To start it at boot: loginctl enable-linger")
    else:
        process = daemon_control.start(config, given)
    daemon_control.wait_held(config, process)
    if not wait:
        pid = None if process is None else process.pid
        if as_json:
            output.print_json({"url": None, "pid": pid, "pair": config.pair})
        known = "" if pid is None else f" (process {pid})"
        output.note(f"The daemon starts{known}. See its state: flashedge ps")
        return
    try:
        with show_start() as show:
            record = daemon_control.wait_ready(config, process, on_state=show)
    except (EngineError, KeyboardInterrupt):
        daemon_control.stop(config)
        raise
    _tell(record, "serves", as_json=as_json)


def _fetch_fitting_pair(config: Config) -> str:
    """Choose the pair for this machine's card, and download what is missing. Returns its name.
    Raises ConfigError where no card or no pair is found, and what `pull_from_hub` raises."""
    from flashedge.cli.doctor.fit import find_place
    from flashedge.cli.models import pull_from_hub
    from flashedge.models.folders import is_folder, resolve_model
    from flashedge.models.memory.fit import choose_auto, list_needs
    from flashedge.models.registry import load_pairs

    place, pairs = find_place(None, config), load_pairs(config).values()
    chosen = choose_auto(pairs, place, config) if place.is_card else None
    if chosen is None:
        told, hint = "this machine has no card", "choose a small one: flashedge models ls --fit"
        if place.is_card:
            free = " + ".join(format_size(max(0, card.free_bytes)) for card, _ in place.cards)
            needs = list_needs((pair for pair in pairs if pair.auto), place, config)
            least = min((need.least_bytes for _, need in needs), default=0)
            told = f"no pair fits {place.name}: {free} free, {format_size(least)} needed"
            hint = "choose another: flashedge models ls --fit"
        raise ConfigError(told, hint=hint, param="pair")
    output.note(f"{chosen.name} fits {place.name}: {chosen.description}")
    for spec in (chosen.generator, chosen.verifier):
        try:
            resolve_model(spec, config)
        except CheckpointError:  # none of it is here, or a part of it
            if is_folder(spec.source):
                raise
            size = f", about {(spec.download_bytes or 0) / 1e9:.1f} GB"
            output.note(f"downloading {spec.source}{size}")
            pull_from_hub(spec, config)
    return chosen.name


def _tell(record: DaemonRecord, does: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"url": record.url, "pid": record.pid, "pair": record.pair})
    else:
        output.say(f"FlashEdge {does} pair {record.pair} at {record.url}")
        if record.pair == "bundled" and not runs_on_cpu():
            output.note("a pair that fits this card: flashedge down; flashedge up --pair auto")


def down(as_json: Json = False) -> None:
    """Stop the daemon. Its running searches are cancelled."""
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import find_holder

    config = load_config()
    if (holder := find_holder(config)) is not None and not as_json:
        output.note(f"stopping the daemon (process {holder})")
    pid = daemon_control.stop(config)
    if as_json:
        output.print_json({"stopped": pid})
    elif pid is None:
        output.note("no daemon runs")
    else:
        output.say(f"stopped the daemon (process {pid})")


def unload(as_json: Json = False) -> None:
    """Unload the engines as soon as no run uses them. The next request loads them again."""
    from flashedge.daemon import control as daemon_control

    with daemon_control.connect(load_config()) as client:
        client.unload()
    if as_json:
        output.print_json({"unloading": True})
    else:
        output.note("the engines are unloaded as soon as nothing uses them")


def logs(
    follow: Annotated[bool, Option("--follow", "-f", help="Print new lines, too.")] = False,
    lines: Annotated[
        int, Option("--lines", "-n", metavar="N", min=0, help="Print the last N lines.")
    ] = 50,
    engines: Annotated[
        bool, Option("--engines", help="Print the output of the engine processes instead.")
    ] = False,
) -> None:
    """Show the daemon's log."""
    from flashedge.daemon.files import find_log_path, find_output_path

    config = load_config()
    path = find_output_path(config) if engines else find_log_path(config)
    if not path.exists():
        raise DaemonError(f"there is no log at {path}", hint="start the daemon: flashedge up")
    file = path.open(encoding="utf-8", errors="replace")
    try:
        for line in collections.deque(file, maxlen=lines):
            output.say(line.removesuffix("\n"))
        while follow:  # until interrupted
            is_over = _is_over(path, file)
            if line := file.readline():
                output.say(line.removesuffix("\n"))
            elif is_over:
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
            else:
                time.sleep(0.2)
    finally:
        file.close()


def _is_over(path: Path, file: TextIOWrapper) -> bool:
    """Whether the log goes on in a new file at `path`, or was emptied, so that it begins again."""
    try:
        now, descriptor = path.stat(), file.fileno()
    except FileNotFoundError:
        return False
    is_emptied = now.st_size < os.lseek(descriptor, 0, os.SEEK_CUR)
    return is_emptied or now.st_ino != os.fstat(descriptor).st_ino


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
    record = daemon_control.find_daemon(config)
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
