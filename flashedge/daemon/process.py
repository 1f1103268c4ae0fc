"""The daemon's process: `python -m flashedge.daemon`. Its life, nothing of what it serves.

In this order, so that what is wrong is said in milliseconds: configuration, state folder, lock,
port; then the slow imports, the service, the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flashedge import __version__
from flashedge.config import Config, load_config
from flashedge.daemon.files import (
    Lock,
    Record,
    log_path,
    prepare_state_dir,
    read_record,
    record_path,
    state_error,
    write_record,
)
from flashedge.errors import ConfigError, DaemonError, FlashEdgeError

log = logging.getLogger("flashedge.daemon")
GRACE_S = 5  # for open connections, once their runs are over
ERROR_MARK = "flashedge-daemon-error "
App = Any


def make_app(config: Config) -> App:
    """The product's application. Imports vLLM's world, so only called once the port is ours."""
    from flashedge.api.app import create_app
    from flashedge.runtime import service

    return create_app(service.build(config), config)


def serve(config: Config, make: Callable[[Config], App] = make_app) -> None:
    """Serve until SIGTERM or SIGINT. Raises FlashEdgeError when it can't start."""
    check_exposure(config)
    prepare_state_dir(config)
    lock = Lock(config)
    listening: socket.socket | None = None
    try:
        _log_to(config)
        reap_orphans(config)
        listening = bind(config.host, config.port)
        port = listening.getsockname()[1]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit)
        record = Record(
            pid=os.getpid(),
            host=config.host,
            port=port,
            pair=config.pair,
            started_at=time.time(),
            version=__version__,
        )
        write_record(config, record)
        log.info("daemon %s starts, pair %s, %s", __version__, config.pair, record.url)
        server = _server(make(config), config)
        server.run(sockets=[listening])
        if not server.started:
            raise DaemonError("the daemon did not start", hint="flashedge logs")
    except FlashEdgeError as error:
        log.error("%s", error.line)
        raise
    finally:
        kill_children()
        if listening is not None:
            listening.close()
            with contextlib.suppress(OSError):
                record_path(config).unlink()
        log.info("daemon stopped")
        lock.release()


def check_exposure(config: Config) -> None:
    """Raises ConfigError when others than this machine could reach a daemon without a key."""
    if not config.is_loopback and not config.api_key:
        raise ConfigError(
            f"host {config.host} can be reached from other machines and no key is set",
            hint="set FLASHEDGE_API_KEY, or host 127.0.0.1",
            param="host",
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises DaemonError saying why the address can't be had."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, proto, _, address = found[0]
    except OSError as error:
        raise DaemonError(f"{host} is no address of this machine ({error.strerror})") from error
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(256)
    except OSError as error:
        made.close()
        in_use = "is in use by another program" if error.errno == 98 else str(error.strerror)
        raise DaemonError(
            f"port {port} on {host}: {in_use}",
            hint="choose another with flashedge up --port N, or FLASHEDGE_PORT",
            param="port",
        ) from error
    made.set_inheritable(False)
    return made


def reap_orphans(config: Config) -> None:
    """Kill engines that outlived a killed daemon. Only called with the lock held.

    They are in the dead daemon's session and name vLLM or the daemon in their command line; a
    session whose leader lives is somebody else's.
    """
    import psutil

    before = read_record(config)
    if before is None or psutil.pid_exists(before.pid):
        return
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            command = " ".join(process.cmdline()).lower()
            ours = "vllm" in command or "flashedge" in command
            if ours and os.getsid(process.pid) == before.pid:
                log.warning("killing process %d, left by daemon %d", process.pid, before.pid)
                process.kill()


def kill_children(grace_s: float = 0.5) -> None:
    """End every process that this one started: asked first, then forced."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=grace_s)
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()


def _server(app: App, config: Config) -> Any:
    """A uvicorn server that ends the application before it waits for open connections.

    uvicorn itself waits first, and a stream ends only when its run does. With `idle_timeout_s` it
    ends by itself once nobody has asked anything for that long.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            limit = config.idle_timeout_s
            if limit is not None and app.state.service.idle_s > limit:
                log.info("idle for %g s: stopping", limit)
                self.should_exit = True
            return bool(await super().on_tick(counter))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level=config.log_level,
            access_log=config.log_level == "debug",
            timeout_graceful_shutdown=GRACE_S,
            lifespan="on",
        )
    )


def _exit(number: int, _frame: object) -> NoReturn:
    raise SystemExit(0 if number == signal.SIGTERM else 130)


def _log_to(config: Config) -> None:
    """All of this process's logging into one rotating file, and to stderr in the foreground."""
    try:
        file = logging.handlers.RotatingFileHandler(
            log_path(config), maxBytes=5 << 20, backupCount=3, encoding="utf-8"
        )
    except OSError as error:
        raise state_error(config, error) from error
    handlers: list[logging.Handler] = [file]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.log_level.upper(), handlers=handlers, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main(argv: Sequence[str] | None = None, make: Callable[[Config], App] = make_app) -> int:
    """The process's exit code. On an error, one marked line on stderr for whoever started us."""
    parser = argparse.ArgumentParser(prog="python -m flashedge.daemon", description=serve.__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="values")
    parser.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        serve(load_config(dict(v.split("=", 1) for v in given.values)), make)
    except FlashEdgeError as error:
        if given.detached:
            told = {"message": str(error), "hint": error.hint, "code": error.code}
            print(ERROR_MARK + json.dumps(told), file=sys.stderr, flush=True)
        else:
            print(f"error: {error.line}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0
