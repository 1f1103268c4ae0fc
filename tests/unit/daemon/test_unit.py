"""The daemon as a service of systemd."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flashedge.config import load_config
from flashedge.daemon import unit
from flashedge.errors import DaemonError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def fake_systemctl(home: Path, *, code: int = 0) -> Path:
    program, asked = home / "bin" / "systemctl", home / "asked"
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho "no bus" >&2\nexit {code}\n')
    program.chmod(0o755)
    return asked


def test_the_unit_runs_this_installation_with_its_settings(tmp_path: Path) -> None:
    environ = {"FLASHEDGE_HOME": str(tmp_path), "FLASHEDGE_API_KEY": 'a"b%c$d\n', "PATH": "/x y"}
    config = load_config({"port": 9}, environ)
    lines = unit.build_unit(config, {"port": 9, "pair": None}, environ).splitlines()
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    assert command.startswith(f'ExecStart="{sys.executable}" "-P" "-m" "flashedge.daemon" "--set"')
    for word in (f'"state_dir={tmp_path}/state"', '"port=9"'):
        assert word in command
    assert "pair" not in command
    environment = {'Environment="FLASHEDGE_API_KEY=a\\"b%%c$d\\n"', 'Environment="PATH=/x y"'}
    assert environment <= set(lines)
    assert not any("FLASHEDGE_HOME" in line for line in lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    environ = {"FLASHEDGE_HOME": str(tmp_path / "a $ and %"), "FLASHEDGE_API_KEY": 'a"b\\c %n $x'}
    text = unit.build_unit(load_config({}, environ), {"pair": "bundled"}, environ)

    def verify(content: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / unit.NAME).write_text(content)
        command = ("systemd-analyze", "verify", "--user", "--man=no", str(tmp_path / unit.NAME))
        env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)

    done = verify(text)
    assert (done.returncode, done.stderr) == (0, "")
    assert verify(text.replace('"-P"', '"-P')).returncode != 0, "it looks"


def test_it_is_enabled_and_started_and_removed(home: Path) -> None:
    asked = fake_systemctl(home)
    config = load_config({}, {"FLASHEDGE_HOME": str(home)})
    assert unit.uninstall() is None
    path = unit.install(config, {})
    assert path == home / "config" / "systemd" / "user" / "flashedge.service"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    commands = ["daemon-reload", "enable flashedge.service", "restart flashedge.service"]
    assert asked.read_text().splitlines() == [f"--user {command}" for command in commands]
    assert unit.install(config, {"port": 9}) == path, "again, with other settings"
    assert "port=9" in path.read_text()
    assert unit.uninstall() == path
    assert not path.exists()
    last = "--user disable --now flashedge.service\n--user daemon-reload\n"
    assert asked.read_text().endswith(last)


def test_a_machine_without_systemd_says_what_to_do(home: Path) -> None:
    config = load_config({}, {"FLASHEDGE_HOME": str(home)})
    with pytest.raises(DaemonError, match="systemd does not answer") as missing:
        unit.install(config, {})
    assert "systemctl --user daemon-reload" in str(missing.value.hint)
    fake_systemctl(home, code=1)
    with pytest.raises(DaemonError, match="no bus") as failed:
        unit.install(config, {})
    assert "flashedge up" in str(failed.value.hint)
