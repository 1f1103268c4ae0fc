"""The daemon as a systemd user service, which starts at login and restarts when it fails."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from flashedge.config import Config
from flashedge.daemon.control import PRODUCT, list_options
from flashedge.errors import DaemonError

NAME = "flashedge.service"
CALL_TIMEOUT_S = 60  # a restart waits up to TimeoutStopSec for the daemon's end
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
"""Variables that the engines need as they are in this shell, in addition to FLASHEDGE_ ones."""


def find_unit_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user" / NAME


def build_unit(
    config: Config, values: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> str:
    """Build the unit's text, with the folders of `config` and this shell's FLASHEDGE_ variables.
    values: settings of the command line."""
    command = [*PRODUCT, *list_options(config, values)]
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or (name.startswith("FLASHEDGE_") and name != "FLASHEDGE_HOME")
    }  # the folders that FLASHEDGE_HOME sets are in the command
    lines = [f"Environment={_quote(f'{name}={value}')}" for name, value in sorted(kept.items())]
    return _UNIT.format(
        command=" ".join(_quote(part.replace("$", "$$")) for part in command),
        environment="\n".join(lines),
    )


def install(config: Config, values: Mapping[str, object]) -> Path:
    """Write the unit, and let systemd start it now and at every login. Returns the unit's path.
    Raises DaemonError when the unit can't be written, or when systemd does not answer or refuses;
    then the unit stays."""
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
    """Stop the service and remove its unit. Returns the unit's path, or None if there is none.
    Raises DaemonError when systemd does not answer or refuses."""
    path = find_unit_path()
    if not path.exists():
        return None
    _call_systemd("disable", "--now", NAME)
    path.unlink(missing_ok=True)
    _call_systemd("daemon-reload")
    return path


def _call_systemd(*words: str) -> None:
    command = ("systemctl", "--user", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
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
    """Quote a word for a unit, where systemd interprets quotes, backslashes, `%` and line ends."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + escaped.replace("\n", "\\n") + '"'
