"""Start, find, await and stop a daemon from another process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import MAX_STREAMS, parse_error
from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon import files
from flashedge.daemon.process import ERROR_MARK
from flashedge.errors import DaemonError, EngineError, FlashEdgeError

READY_TIMEOUT_S = 600.0  # large models take minutes to load
STOP_TIMEOUT_S = 20.0  # more than a daemon takes to end its runs, connections and engines
KILL_TIMEOUT_S = 5.0  # the system ends a killed process in milliseconds, unless a driver holds it
HELD_TIMEOUT_S = 10.0  # systemd starts the process; the lock is taken before the slow imports
PRODUCT = (sys.executable, "-P", "-m", "flashedge.daemon")
"""The command that runs a daemon. With -P a folder named flashedge where it starts is ignored."""

CLI = "cli"  # the client name of the CLI's commands
_POLL_S = 0.1  # short enough to look immediate
_SEE_LOG = "see its log: flashedge logs"


def connect(config: Config, *, program: str | None = None) -> Client:
    """Connect to the running daemon. program: see `protocol.build_headers`. Raises DaemonError if
    none runs, RequestError for a bad name."""
    return Client(_find_running(config).url, api_key=config.api_key, name=CLI, program=program)


def connect_async(
    config: Config, *, name: str = CLI, program: str | None = None, max_streams: int = MAX_STREAMS
) -> AsyncClient:
    """Connect with an asynchronous client. name, program: see `protocol.build_headers`.
    max_streams: see `protocol.Calls`. Raises like `connect`."""
    return AsyncClient(
        _find_running(config).url,
        api_key=config.api_key,
        name=name,
        program=program,
        max_streams=max_streams,
    )


def _find_running(config: Config) -> files.DaemonRecord:
    if (record := find_daemon(config)) is None:
        raise DaemonError("no daemon is running", hint="start one: flashedge up")
    return record


def find_daemon(config: Config) -> files.DaemonRecord | None:
    """Find the running daemon of this state folder. None if there is none that listens."""
    pid, record = files.find_holder(config), files.read_record(config)
    return record if pid is not None and record is not None and record.pid == pid else None


def start(
    config: Config, values: Mapping[str, object] | None = None, command: Sequence[str] = PRODUCT
) -> subprocess.Popen[bytes]:
    """Start a daemon in its own session, with the explicit settings `values` and the output in
    `find_output_path`. Returns at once: `wait_ready` waits until it serves. Raises ConfigError when
    the state folder can't be written, DaemonError when a daemon is already running."""
    files.prepare_state_dir(config)
    if (pid := files.find_holder(config)) is not None:
        raise files.explain_running_daemon(config, pid)
    options = list_options(config, values or {})
    output = files.find_output_path(config)
    with contextlib.suppress(OSError):
        output.replace(files.find_kept_output_path(config))
    with output.open("ab") as out:  # append mode, since `bound_output` empties the open file
        return subprocess.Popen(
            [*command, "--detached", *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def list_options(config: Config, values: Mapping[str, object]) -> list[str]:
    """List the daemon's arguments: the folders of `config` and the settings `values`, apart from
    those that are None."""
    folders = {k: getattr(config, k) for k in ("state_dir", "cache_dir", "config_dir")}
    given = {**folders, **{k: v for k, v in values.items() if v is not None}}
    return [part for k, v in given.items() for part in ("--set", f"{k}={v}")]


def wait_held(config: Config, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a starting daemon holds the lock, so that `stop` finds it.

    process: what `start` returned, if this program started it; the error that it reported is raised
    if it ended before. Raises DaemonError when another's does not hold it within HELD_TIMEOUT_S.
    """
    until = time.monotonic() + HELD_TIMEOUT_S
    while files.find_holder(config) is None:
        if process is not None and process.poll() is not None:
            raise read_error(config, process.returncode)
        if process is None and time.monotonic() > until:
            raise DaemonError(f"no daemon started within {HELD_TIMEOUT_S:.0f} s", hint=_SEE_LOG)
        time.sleep(_POLL_S)


def wait_ready(
    config: Config,
    process: subprocess.Popen[bytes] | None = None,
    timeout_s: float = READY_TIMEOUT_S,
    on_state: Callable[[str], None] = lambda state: None,
) -> files.DaemonRecord:
    """Wait until the daemon serves. If it has unloaded its engines, tell it to load them.

    process: what `start` returned, if this program started the daemon. on_state: called at each
    check with what the daemon does. Raises the error that the daemon reported before it ended,
    EngineError when an engine failed for good, DaemonError when the daemon ended without a report
    or was not ready after `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    is_asked = False
    while time.monotonic() < until:
        if process is not None and process.poll() is not None:
            raise read_error(config, process.returncode)
        record = find_daemon(config)
        if record is not None and process is not None and record.pid != process.pid:
            record = None  # another daemon was faster; ours will notice and end
        health = _read_health(config, record)
        state, detail = str(health.get("status")), health.get("detail")
        if record is not None and state in ("ready", "degraded"):
            return record
        if record is not None and state == "unloaded" and not is_asked:
            with connect(config) as client:
                client.load()
            is_asked = True
            continue
        if state in ("failed", "unloaded"):
            reason = detail or "no reason is known"
            raise EngineError(f"the engines did not start: {reason}", hint=_SEE_LOG)
        if process is None and record is None and files.find_holder(config) is None:
            raise DaemonError("the daemon stopped while it was starting", hint=_SEE_LOG)
        shown = f"{state}: {detail}" if detail else state
        on_state(shown if record is not None and "status" in health else "loading")
        time.sleep(_POLL_S)
    raise DaemonError(f"the daemon was not ready after {timeout_s:.0f} s", hint=_SEE_LOG)


def ensure(
    config: Config,
    on_state: Callable[[str], None] = lambda state: None,
    command: Sequence[str] = PRODUCT,
) -> files.DaemonRecord:
    """Return the running daemon, or start one, and wait until it is ready. Raises like `start` and
    `wait_ready`. A daemon started here is stopped if its engines fail or Ctrl-C is pressed."""
    if files.find_holder(config) is not None:
        return wait_ready(config, on_state=on_state)
    process: subprocess.Popen[bytes] | None = None
    try:
        given = {"pair": config.pair, "port": config.port, "host": config.host}
        process = start(config, given, command)
        return wait_ready(config, process, on_state=on_state)
    except DaemonError:
        if files.find_holder(config) in (None, process.pid if process else None):
            raise
        return wait_ready(config, on_state=on_state)  # another daemon was faster
    except (EngineError, KeyboardInterrupt):
        stop(config)
        raise


def stop(config: Config, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
    """Stop the daemon and wait until its process has ended; after `timeout_s` it is killed. Returns
    its pid, or None when no daemon ran. Raises DaemonError when it does not end, or belongs to
    another user."""
    pid = files.find_holder(config)
    if pid is None:
        return None
    has_ended = _watch_end(pid)
    for number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILL_TIMEOUT_S)):
        try:
            os.kill(pid, number)
            if number == signal.SIGKILL and os.getsid(pid) == pid:
                os.killpg(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise DaemonError(f"the daemon (process {pid}) belongs to another user") from error
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if has_ended():
                return pid
            time.sleep(_POLL_S)
    raise DaemonError(f"the daemon (process {pid}) does not end", hint=f"kill -9 {pid}")


def _watch_end(pid: int) -> Callable[[], bool]:
    """Return a function that tells whether the process that has `pid` now has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return lambda: True

    def has_ended() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return has_ended


def read_error(config: Config, returncode: int) -> FlashEdgeError:
    """Read from the output why a daemon ended before it served."""
    try:
        output = files.find_output_path(config)
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        if line.startswith(ERROR_MARK):
            with contextlib.suppress(ValueError):  # a full disk cuts the line
                return parse_error({"error": json.loads(line.removeprefix(ERROR_MARK))}, 500)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return DaemonError(f"the daemon ended with exit code {returncode}: {last[:200]}", hint=_SEE_LOG)


def _read_health(config: Config, record: files.DaemonRecord | None) -> dict[str, Any]:
    """Read the body of /health. Empty if nothing answers within two seconds."""
    if record is None:
        return {}
    with contextlib.suppress(DaemonError), Client(record.url, api_key=config.api_key) as client:
        return client.health(timeout_s=2.0)
    return {}
