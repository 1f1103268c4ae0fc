"""The daemon as a service of systemd, for one user: started at login, restarted when it fails."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flashedge.config import Config
from flashedge.daemon.control import PRODUCT, list_options
from flashedge.errors import DaemonError

NAME = "flashedge.service"
_UNIT = """\
[Unit]
Description=FlashEdge, a local reasoning server

[Service]
ExecStart={command}
{environment}
Restart=on-failure
RestartSec=5
TimeoutStopSec=30
KillMode=mixed

[Install]
WantedBy=default.target
"""
_KEPT = ("PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH")
"""Variables, in addition to our own, that the engines need as they are in this shell."""


def find_unit_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def build_unit(
    config: Config, values: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> str:
    """The unit's text, with this shell's folders and FLASHEDGE_ variables. values: settings of the
    command line."""
    command = [*PRODUCT, *list_options(config, values)]
    kept = {
        name: v
        for name, v in environ.items()
        if name in _KEPT or (name.startswith("FLASHEDGE_") and name != "FLASHEDGE_HOME")
    }
    lines = [f"Environment={_quote(f'{name}={v}')}" for name, v in sorted(kept.items())]
    return _UNIT.format(
        command=" ".join(_quote(part.replace("$", "$$")) for part in command),
        environment="\n".join(lines),
    )


def install(config: Config, values: Mapping[str, object]) -> Path:
    """Write the unit, and let systemd start it now and at every login. Returns its path. Raises
    DaemonError where there is no systemd for users; the unit is written nevertheless."""
    path = find_unit_path()
    text = build_unit(config, values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # it may hold the API key
        path.write_text(text)
    except OSError as error:
        raise DaemonError(f"can't write {path}: {error.strerror}") from error
    _call_systemd("daemon-reload")
    _call_systemd("enable", NAME)
    _call_systemd("restart", NAME)
    return path


def uninstall() -> Path | None:
    """Stop the service and remove its unit. None: there is none. Raises DaemonError."""
    path = find_unit_path()
    if not path.exists():
        return None
    _call_systemd("disable", "--now", NAME)
    path.unlink(missing_ok=True)
    _call_systemd("daemon-reload")
    return path


def _call_systemd(*words: str) -> None:
    command: Sequence[str] = ("systemctl", "--user", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DaemonError(
            f"systemd does not answer: {error}", hint=f"run it by hand: {shlex.join(command)}"
        ) from error
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DaemonError(
            f"`{shlex.join(command)}` failed: {reason[0]}",
            hint=f"the unit is {find_unit_path()}; without systemd use `flashedge up`",
        )


def _quote(text: str) -> str:
    """One word of a unit's line: systemd reads quotes, backslashes and % in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
