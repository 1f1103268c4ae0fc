"""`up`, `down`, `ps`, `logs`: start, stop and watch the daemon."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import show_start
from flashedge.cli.profile import renew_profile
from flashedge.cli.programs import print_boosts, print_programs
from flashedge.client.words import format_count, format_duration
from flashedge.config import Config, check_exposure, load_config
from flashedge.errors import DaemonError, EngineError

if TYPE_CHECKING:
    from flashedge.daemon.files import DaemonRecord

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ENGINE_COLUMNS = (
    *("engine", "state", "pid", "restarts", "running", "waiting", "KV blocks"),
    "cache hits",
)


def up(
    pair: Annotated[
        str | None, typer.Option(metavar="PAIR", help="Pair to serve.", show_default="bundled")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Port to listen on.", show_default="8642")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in this terminal until ctrl-c.")
    ] = False,
    install: Annotated[
        bool,
        typer.Option("--install", help="Let systemd start it now, at login, and when it fails."),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Undo --install, and stop the daemon.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the daemon is ready.")] = True,
    as_json: Json = False,
) -> None:
    """Start the daemon with both engines.

    `flashedge config` shows and sets the defaults of these options.

    Example: flashedge up --pair math-1.5b+skywork-1.5b
    """
    from flashedge.daemon import control as daemon_control
    from flashedge.models.registry import find_pair

    if uninstall:
        _uninstall()
        return
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
        if install or _differs(running, given):
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
        _install(config, given)
        process = None
    else:
        process = daemon_control.start(config, given)
    if not wait:
        known = "" if process is None else f" (process {process.pid})"
        output.note(f"The daemon starts{known}. See its state: flashedge ps")
        return
    try:
        with show_start() as show:
            record = daemon_control.wait_ready(config, process, on_state=show)
    except (EngineError, KeyboardInterrupt):
        daemon_control.stop(config)
        raise
    _tell(record, "serves", as_json=as_json)


def _differs(running: DaemonRecord, given: Mapping[str, object]) -> bool:
    """Whether the running daemon is another one than the options ask for."""
    return any(
        value is not None and value != getattr(running, name) for name, value in given.items()
    )


def _tell(record: DaemonRecord, does: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"url": record.url, "pid": record.pid, "pair": record.pair})
    else:
        output.say(f"FlashEdge {does} pair {record.pair} at {record.url}")


def _install(config: Config, given: Mapping[str, object]) -> None:
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon import unit

    path = unit.install(config, given)
    output.note(f"installed {path}")
    daemon_control.wait_held(config)
    output.note("It starts when you log in; at boot too after: loginctl enable-linger")


def _uninstall() -> None:
    from flashedge.daemon import unit

    path = unit.uninstall()
    output.note("there is no service to remove" if path is None else f"removed {path}")


def down(as_json: Json = False) -> None:
    """Stop the daemon. Its running searches are cancelled."""
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import find_holder

    config = load_config()
    holder = find_holder(config)
    if holder is not None and not as_json:
        output.note(f"stopping the daemon (process {holder})")
    pid = daemon_control.stop(config)
    if as_json:
        output.print_json({"stopped": pid})
    elif pid is None:
        output.note("no daemon runs")
    else:
        output.say(f"stopped the daemon (process {pid})")


def unload(as_json: Json = False) -> None:
    """Give the memory of the engines back, once no run uses them. The next request loads them."""
    from flashedge.daemon import control as daemon_control

    with daemon_control.connect(load_config()) as client:
        client.unload()
    if as_json:
        output.print_json({"unloading": True})
    else:
        output.note("the engines are unloaded as soon as nothing uses them")


def ps(as_json: Json = False) -> None:
    """Show the daemon, its engines and their load, and the programs that run or wait.

    Of each engine: the share of its requests' prompts that it found in its prefix cache. Of the
    last plain requests and searches: how long the first token took, and each one after it (of a
    search: of all its paths), for half of them (p50) and for all but a tenth and a hundredth.

    Of each program: its place in the queue, how long it has waited, the predicted length of one of
    its answers or paths (half are longer than the median, a tenth longer than the tail), and when
    it is expected to start.

    Exits 1 when no daemon runs or an engine is not ready.
    """
    from flashedge.daemon import control as daemon_control

    config = load_config()
    record = daemon_control.find(config)
    if record is None:
        if as_json:
            output.print_json({"daemon": None})
        else:
            output.note("No daemon runs. Start one: flashedge up")
        raise typer.Exit(exit_codes.NO_RESULT)
    with daemon_control.connect(config) as client:
        health = client.health(timeout_s=5.0)
        status = client.status() if health["status"] != "starting" else {}
    engines = status.get("engines") or {}
    if as_json:
        output.print_json(
            {"daemon": {**dataclasses.asdict(record), "url": record.url}, **status, **health}
        )
    else:
        age = format_duration(time.time() - record.started_at)
        output.say(
            f"{health['status']}: pair {describe_pairs(record.pair, status)} at {record.url},"
            f" process {record.pid}, up {age}"
        )
        runs, scheduling = status.get("runs") or {}, status.get("scheduling") or {}
        counts = f"{format_count(runs.get('running', 0), 'run')}, {runs.get('queued', 0)} waiting"
        policy = scheduling.get("policy")
        output.say(counts if policy is None else f"{counts}, policy {policy}")
        self_test = status.get("self_test") or {}
        if verdict := describe_kernels(self_test):
            output.say(verdict)
        if failure := self_test.get("failure"):
            output.say(f"the self-test did not end ({failure}): no request can be deterministic")
        elif not self_test and health["status"] == "ready" and status.get("loaded"):
            output.say("the self-test goes on; deterministic requests wait for it")
        if done := describe_replays(engines.get("generator") or {}):
            output.say(done)
        if any(engine.get("cards") for engine in engines.values()):
            output.say(describe_places(engines))
        print_engines(status.get("pairs") or {})
        for line in describe_latency(status.get("latency") or {}):
            output.say(line)
        if users := describe_card_users(status.get("pairs") or {}):
            output.say(users)
        if programs := scheduling.get("programs"):
            print_programs(programs)
        if boosts := scheduling.get("boosts"):
            print_boosts(boosts)
        if health.get("detail"):
            output.say(health["detail"])
    every = [e for pair in (status.get("pairs") or {}).values() for e in pair["engines"].values()]
    if any(engine.get("state") not in ("ready", "unloaded") for engine in every):
        raise typer.Exit(exit_codes.NO_RESULT)


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until ctrl-c.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Print the last N lines.")
    ] = 50,
    engines: Annotated[
        bool, typer.Option("--engines", help="Print the output of the engine processes instead.")
    ] = False,
) -> None:
    """Show the daemon's log."""
    from flashedge.daemon.files import log_path, output_path

    config = load_config()
    path = output_path(config) if engines else log_path(config)
    if not path.exists():
        raise DaemonError(f"there is no log at {path}", hint="start the daemon: flashedge up")
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in collections.deque(file, maxlen=lines):
            output.say(line.removesuffix("\n"))
    if follow:
        _follow_log(path)


def _follow_log(path: Path) -> None:
    """Print what is appended, across rotations, until interrupted."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, 2)
    while True:
        line = file.readline()
        if line:
            output.say(line.removesuffix("\n"))
            continue
        time.sleep(0.2)
        if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            file.close()
            file = path.open(encoding="utf-8", errors="replace")


def describe_kernels(self_test: Mapping[str, Any]) -> str | None:
    """What the self-test says about the same request's tree. None without a verdict."""
    is_invariant = self_test.get("batch_invariant")
    if is_invariant is None:
        return None
    if not is_invariant:
        difference = self_test.get("max_logprob_difference")
        shown = (
            "" if difference is None else f" (log-probabilities differ by up to {difference:.2g})"
        )
        return (
            f"kernels are not batch-invariant{shown}: the same request can give another tree;"
            " on a card, set batch_invariant"
        )
    tokens = self_test.get("invariant_tokens")
    limit = "" if tokens is None else f", tested up to {tokens} tokens"
    return f"kernels are batch-invariant{limit}: the same request gives the same tree"


def describe_replays(generator: Mapping[str, Any]) -> str | None:
    """What deterministic requests cost since the engine's start. None if there was none."""
    counts = (generator.get("view") or {}).get("replays") or {}
    if not counts.get("verified_tokens"):
        return None
    passes = counts["verify_passes"] + counts["prefill_passes"]
    return (
        f"deterministic requests: {counts['verified_tokens']} tokens verified,"
        f" {format_count(counts['rollbacks'], 'rollback')}"
        f" ({counts['recomputed_tokens']} tokens drawn again),"
        f" {passes} passes in {counts['pass_us'] / 1e6:.1f} s"
    )


def describe_pairs(usual: str, status: dict[str, Any]) -> str:
    """Name the pair of requests that name none, and the loaded ones where these are others."""
    loaded = status.get("loaded") or []
    return usual if loaded in ([], [usual]) else f"{usual}, loaded are {', '.join(loaded)}"


def describe_places(engines: dict[str, Any]) -> str:
    """Say on which cards the engines run, and whether KV memory moves between them."""
    found = ", ".join(f"{name} on {engine.get('cards')}" for name, engine in engines.items())
    if any(engine.get("kv_memory") == "own" for engine in engines.values()):
        found += "; each keeps its KV memory"
    return found


def describe_latency(latency: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind of request of which some have finished."""
    for kind, nouns in (("chat", "plain requests"), ("run", "searches")):
        found = latency.get(kind) or {}
        if not found.get("requests"):
            continue
        first = _format_percentiles(found["first_token_s"], 1, "s")
        line = f"{nouns}, the last {found['requests']:,}: first token {first}"
        if each := found["token_s"]:
            line += f"; each next one {_format_percentiles(each, 1000, 'ms')}"
        yield line


def _format_percentiles(seconds: Mapping[str, float], scale: int, unit: str) -> str:
    shown = [f"{name} {scale * value:.3g}" for name, value in seconds.items()]
    return f"{', '.join(shown)} {unit}"


def describe_card_users(pairs: Mapping[str, Any]) -> str | None:
    """The other programs on the cards. None where there is none."""
    from flashedge.profiler.card_watch import CardUser, describe_user

    found = dict.fromkeys(
        describe_user(CardUser(**user))
        for pair in pairs.values()
        for user in pair.get("card_users") or ()
    )
    return f"other programs hold memory of the card: {', '.join(found)}" if found else None


def print_engines(pairs: Mapping[str, Any]) -> None:
    """Print the engines of all loaded pairs, and the runs of each where there are several."""
    several = len(pairs) > 1
    rows = []
    for pair, state in pairs.items():
        if several:
            runs = state["runs"]
            output.say(f"{pair}: {format_count(runs['running'], 'run')}, {runs['queued']} waiting")
        for engine, figures in state["engines"].items():
            rows.append(_format_engine(f"{pair} {engine}" if several else engine, figures))
    output.print_table(ENGINE_COLUMNS, rows, "no engines yet")


def _format_engine(name: str, engine: dict[str, Any]) -> tuple[object, ...]:
    view = engine.get("view") or {}
    blocks = f"{view['blocks_used']}/{view['quota_blocks']}" if view else None
    hits = view.get("cache_hits")
    return (
        name,
        engine.get("state"),
        engine.get("pid"),
        engine.get("restarts"),
        view.get("running"),
        view.get("waiting"),
        blocks,
        None if hits is None else f"{hits:.0%}",
    )
