"""The daemon's files in the state folder: the lock, the record and the logs.

The lock decides whether a daemon runs. It is a POSIX record lock: the system releases it when the
process ends, and the engine processes do not inherit it. The record, `daemon.json`, says where a
running daemon listens. A killed daemon leaves it behind, so without the lock it means nothing.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import ConfigError, DaemonError

log = logging.getLogger(__name__)
LEAST_FREE_BYTES = 1 << 20  # room for the first log lines and small runs of a daemon
OUTPUT_BYTES = 5 << 20
"""Longest output file before it is emptied: as long as a file of the log (`process.LOG_BYTES`)."""

_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRecord:
    """Where a daemon listens, and with which default pair it was started."""

    pid: int
    host: str
    port: int
    pair: str
    started_at: float
    """Unix seconds."""
    version: str

    @property
    def url(self) -> str:
        return build_url(self.host, self.port)


def build_url(host: str, port: int) -> str:
    """Build the URL at which this machine reaches a daemon that listens on `host`."""
    host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_lock_path(config: Config) -> Path:
    return config.state_dir / "daemon.lock"


def find_record_path(config: Config) -> Path:
    return config.state_dir / "daemon.json"


def find_log_path(config: Config) -> Path:
    return config.state_dir / "logs" / "daemon.log"


def find_output_path(config: Config) -> Path:
    """What the daemon and its engines have printed since the daemon's start, or since the file was
    last emptied (`bound_output`)."""
    return config.state_dir / "logs" / "daemon.out"


def find_kept_output_path(config: Config) -> Path:
    """The previous output file, which `control.start` and `bound_output` keep."""
    return find_output_path(config).with_suffix(".out.1")


def bound_output(config: Config) -> None:
    """Keep a copy of an output file longer than OUTPUT_BYTES, and empty the file. It is emptied in
    place, since the engines have it open, and without a copy if the disk is full."""
    path = find_output_path(config)
    try:
        if path.stat().st_size <= OUTPUT_BYTES:
            return
        with contextlib.suppress(OSError):
            shutil.copyfile(path, find_kept_output_path(config))
        os.truncate(path, 0)
    except OSError as error:
        log.warning("the output %s can't be emptied: %s", path, error.strerror)


def prepare_state_dir(config: Config) -> None:
    """Make the state folder and check that it can be written. Raises ConfigError if it can't, or if
    its disk is full. A process that holds the lock must not call this, since that would release it.
    """
    try:
        (config.state_dir / "logs").mkdir(parents=True, exist_ok=True)
        config.state_dir.chmod(0o700)
        with find_lock_path(config).open("a"), find_output_path(config).open("a"):
            pass
        disk = os.statvfs(config.state_dir)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise explain_unwritable_state(config, error) from error


def explain_unwritable_state(config: Config, error: OSError) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(
            f"the disk of the state folder {config.state_dir} is full", hint="free some space"
        )
    return ConfigError(
        f"can't write the state folder {config.state_dir}: {error.strerror}",
        hint="set FLASHEDGE_HOME or FLASHEDGE_STATE_DIR to a folder that you can write",
    )


def explain_running_daemon(config: Config, pid: int | None) -> DaemonError:
    return DaemonError(
        f"a daemon is already running (process {pid}) with the state folder {config.state_dir}",
        hint="stop it: flashedge down",
    )


class Lock:
    """The lock that the one daemon of a state folder holds while its process lives."""

    def __init__(self, config: Config, inherited: int | None = None) -> None:
        """Take the lock. inherited: the descriptor by which this process held it before it replaced
        itself. Raises DaemonError naming the process that holds the lock, or ConfigError."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        self.descriptor = os.open(find_lock_path(config), flags) if inherited is None else inherited
        os.set_inheritable(self.descriptor, False)
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise explain_unwritable_state(config, error) from error
            raise explain_running_daemon(config, find_holder(config)) from error

    def release(self) -> None:
        os.close(self.descriptor)


def find_holder(config: Config) -> int | None:
    """Find the pid of the daemon that holds the lock, or None. The daemon itself must not call
    this, since it would release the lock."""
    try:
        with find_lock_path(config).open("r+") as file:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, query))
    except (FileNotFoundError, PermissionError):
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)


def write_record(config: Config, record: DaemonRecord) -> None:
    """Write the record in one step. Raises ConfigError when the state folder can't be written."""
    path = find_record_path(config)
    try:
        fresh = path.with_suffix(".json.new")
        fresh.write_text(json.dumps(dataclasses.asdict(record)) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise explain_unwritable_state(config, error) from error


def read_record(config: Config) -> DaemonRecord | None:
    """Read the record, even of a daemon that has ended. None when it is missing or damaged."""
    try:
        return DaemonRecord(**json.loads(find_record_path(config).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
