"""The daemon's process: `python -m flashedge.daemon`.

It reads the configuration, takes the lock and opens the port before the slow imports, so that a
mistake is reported within milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from flashedge import __version__
from flashedge.config import Config, check_exposure, load_config
from flashedge.daemon import files
from flashedge.errors import DaemonError, FlashEdgeError
from flashedge.literal import show_literally
from flashedge.models.registry import name_pair

log = logging.getLogger("flashedge.daemon")
GRACE_S = 5  # open connections may take so long to close, once their runs are over
KEEP_ALIVE_S = 75
"""Longest time that a connection stays open without a request. Most clients close theirs earlier,
so they send no request while it is being closed here, which would be an error."""

ACCEPTED_S = 0.25  # a client that has connected sends its request within this time
LOG_BYTES = 5 << 20
LOG_FILES = 4  # the log takes at most 20 MiB
OUTPUT_TICKS = 100  # ticks of uvicorn, ten a second, between two checks of the output's length
ANSWER_TIMEOUT_S = 1.0  # another FlashEdge daemon answers /health in milliseconds
INHERITED_OPTION = "--inherited"
ERROR_MARK = "flashedge-daemon-error "  # the JSON of a detached daemon's error follows it
App = Any  # a FastAPI application, whose class is too slow to import here
MakeApp = Callable[[Config, bool], App]  # the bool: whether to load the default pair at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a daemon passes on to the fresh process that replaces it, to give its memory back. A
    process that has imported vLLM keeps some 700 MiB. The fresh one takes a tenth of that until a
    request needs a pair. The process id, the lock and the listening sockets stay, so no client is
    refused: a connection made meanwhile waits for about a second."""

    listening: Sequence[int]
    """Descriptors of the listening sockets."""
    lock: int
    """Descriptor of the lock's file. Closing any descriptor of that file would release the lock."""
    busy_at: float
    """When the last run or request ended, by `time.monotonic`."""

    @classmethod
    def parse(cls, text: str) -> Inherited:
        return cls(**json.loads(text))

    def open_sockets(self) -> list[socket.socket]:
        for descriptor in self.listening:
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in self.listening]

    def replace_process(self) -> NoReturn:
        """Run the daemon's own command line again, in this process."""
        for descriptor in (*self.listening, self.lock):
            os.set_inheritable(descriptor, True)
        inherited = f"{INHERITED_OPTION}={json.dumps(asdict(self))}"
        words = [word for word in sys.orig_argv[1:] if not word.startswith(f"{INHERITED_OPTION}=")]
        os.execv(sys.executable, [sys.executable, *words, inherited])


def make_app(config: Config, load: bool) -> App:
    from flashedge.api.app import create_app
    from flashedge.runtime.build import build

    return create_app(build(config, load=load), config)


def serve(
    config: Config, make: MakeApp = make_app, inherited: Inherited | None = None
) -> Inherited | None:
    """Serve until a signal, `idle_timeout_s` without a request, or until the engines are due to be
    unloaded. inherited: what the process that this one replaces has passed on. With it no pair is
    loaded before a request needs one. Returns what to pass on to a process that has to replace this
    one, or None when the daemon is to end. Raises FlashEdgeError."""
    check_exposure(config)
    config = name_pair(config)
    if inherited is None:
        files.prepare_state_dir(config)
    lock = files.Lock(config, None if inherited is None else inherited.lock)
    listening: list[socket.socket] = []
    passed_on: Inherited | None = None
    try:
        _configure_logging(config)
        reap_orphans(config)
        listening = inherited.open_sockets() if inherited else listen(config.host, config.port)
        port = listening[0].getsockname()[1]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit_on_signal)
        before = None if inherited is None else files.read_record(config)
        record = files.DaemonRecord(
            pid=os.getpid(),
            host=config.host,
            port=port,
            pair=config.pair,
            started_at=time.time() if before is None else before.started_at,
            version=__version__,
        )
        files.write_record(config, record)
        log.info("FlashEdge %s starts: pair %s at %s", __version__, config.pair, record.url)
        app = make(config, inherited is None)
        if inherited is not None:
            app.state.service.idle.busy_at = inherited.busy_at
        server = _build_server(app, config, listening)
        server.run(sockets=listening)
        if not server.started:
            raise DaemonError("the daemon did not start", hint="flashedge logs")
        if server.kept is not None:
            passed_on = Inherited(
                listening=server.kept, lock=lock.descriptor, busy_at=app.state.service.idle.busy_at
            )
        return passed_on
    except FlashEdgeError as error:
        log.error("%s", error.line)
        raise
    finally:
        kill_children()
        if passed_on is None:
            for each in listening:
                each.close()
            if listening:
                with contextlib.suppress(OSError):
                    files.find_record_path(config).unlink()
            log.info("daemon stopped")
            lock.release()


def listen(host: str, port: int) -> list[socket.socket]:
    """Open the listening sockets, the one of `host` first. Clients resolve localhost to 127.0.0.1
    or to ::1, so a daemon on one of them also listens on the other if that is free. Raises
    DaemonError when `host` and `port` can't be used."""
    first = bind(host, port)
    name, port = first.getsockname()[:2]
    others = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
    if name not in others:
        return [first]
    try:
        return [first, bind(others[name], port)]
    except DaemonError as error:
        log.info("the daemon is not at %s: %s", others[name], error)
        return [first]


def bind(host: str, port: int) -> socket.socket:
    """Open a socket that listens on `host`. Raises DaemonError when the address can't be used."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, proto, _, address = found[0]
    except (OSError, UnicodeError) as error:
        raise DaemonError(
            f"{host} is not an address of this machine ({error})",
            hint="serve this machine only: flashedge up --host 127.0.0.1",
            param="host",
        ) from error
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)  # connections may wait while a fresh process replaces this one
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            ours = "a FlashEdge daemon of another state folder"
            user = ours if is_flashedge(host, port) else "another program"
            message = f"{user} already uses port {port} on {host}"
        else:
            message = f"can't listen on port {port} of {host}: {error.strerror}"
        raise DaemonError(
            message,
            hint="choose another port: flashedge up --port N, or set FLASHEDGE_PORT",
            param="port",
        ) from error
    listening.set_inheritable(False)
    return listening


def is_flashedge(host: str, port: int) -> bool:
    """Whether a FlashEdge daemon answers at this address."""
    import httpx

    try:
        answer = httpx.get(
            files.build_url(host, port) + "/health", timeout=ANSWER_TIMEOUT_S, trust_env=False
        ).json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and {"status", "detail"} <= answer.keys()


def reap_orphans(config: Config) -> None:
    """Kill the engines that a killed daemon left behind: the processes of its session that have
    vLLM or FlashEdge in their command lines. Kills nothing while a process has the daemon's id,
    since the session may be that process's by now."""
    import psutil

    before = files.read_record(config)
    if before is None or psutil.pid_exists(before.pid):
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            command = " ".join(process.cmdline()).lower()
            ours = "vllm" in command or "flashedge" in command
            if ours and os.getsid(process.pid) == before.pid:
                log.warning(
                    "killing process %d that daemon %d left behind", process.pid, before.pid
                )
                process.kill()


def kill_children() -> None:
    """Terminate every process that this one started, and kill those that stay."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=0.5)  # the engines have ended before
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(alive, timeout=0.5)  # else a process that replaces this one has zombies


def _build_server(app: App, config: Config, listening: Sequence[socket.socket]) -> Any:
    """Build a uvicorn server that ends the application before it waits for open connections, since
    a stream ends only when its run does. It stops after `idle_timeout_s` without a request. It also
    stops when the engines are due to be unloaded; then `kept` holds descriptors by which another
    process can go on listening."""
    import uvicorn

    from flashedge.daemon.http_connection import HEADER_BYTES, HttpConnection

    class Server(uvicorn.Server):
        kept: tuple[int, ...] | None = None

        async def on_tick(self, counter: int) -> bool:
            limit, service = config.idle_timeout_s, app.state.service
            if counter % OUTPUT_TICKS == 0:
                files.bound_output(config)
            if limit is not None and service.idle.idle_s > limit:
                log.info("no request for %g s: the daemon stops", limit)
                self.should_exit = True
            elif service.should_unload and not self.should_exit:
                log.info("no request for %.0f s: the engines are unloaded", service.idle.idle_s)
                self.kept = tuple(os.dup(each.fileno()) for each in listening)
                self.should_exit = True
            return bool(await super().on_tick(counter))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            if self.kept is not None:
                await self._finish_accepted()
            await self.lifespan.shutdown()
            await super().shutdown(sockets)

        async def _finish_accepted(self) -> None:
            """Answer the requests on accepted connections. The next process accepts other ones."""
            await asyncio.sleep(ACCEPTED_S)
            while not app.state.service.idle.idle_s:  # noqa: ASYNC110 - no event says that it is idle
                await asyncio.sleep(ACCEPTED_S)
            for connection in list(self.server_state.connections):
                connection.shutdown()  # at once, unless it waits for an answer

    return Server(
        uvicorn.Config(
            app,
            http=HttpConnection,
            h11_max_incomplete_event_size=HEADER_BYTES,
            log_config=None,
            log_level=config.log_level,
            access_log=config.log_level == "debug",
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="on",
        )
    )


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    raise SystemExit(0 if number == signal.SIGTERM else 130)


class _LiteralFormatter(logging.Formatter):
    """Makes control characters visible. Log lines quote requests, and are read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        return show_literally(super().format(record))


def _configure_logging(config: Config) -> None:
    try:
        file = logging.handlers.RotatingFileHandler(
            files.find_log_path(config),
            maxBytes=LOG_BYTES,
            backupCount=LOG_FILES - 1,
            encoding="utf-8",
        )
    except OSError as error:
        raise files.explain_unwritable_state(config, error) from error
    handlers: list[logging.Handler] = [file]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(_LiteralFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.log_level.upper(), handlers=handlers, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main(argv: Sequence[str] | None = None, make: MakeApp = make_app) -> int:
    """Run the daemon and return its exit code. A detached daemon reports an error as one line with
    ERROR_MARK to stderr, for the process that started it."""
    parser = argparse.ArgumentParser(
        prog="python -m flashedge.daemon", description="Run the daemon until SIGTERM or SIGINT."
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="values")
    parser.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(INHERITED_OPTION, type=Inherited.parse, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        config = load_config(dict(v.split("=", 1) for v in given.values))
        if (passed_on := serve(config, make, given.inherited)) is not None:
            passed_on.replace_process()
    except FlashEdgeError as error:
        if given.detached:
            body = {"message": str(error), "hint": error.hint, "code": error.code}
            print(ERROR_MARK + json.dumps(body), file=sys.stderr, flush=True)
        else:
            print(f"error: {show_literally(error.line)}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0
