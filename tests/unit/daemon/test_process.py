"""The daemon as a process: starting, finding, awaiting and stopping it, its faults and its logs."""

import errno
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flashedge.config import Config, check_exposure, load_config
from flashedge.daemon import control, files, process
from flashedge.daemon.files import (
    bound_output,
    find_kept_output_path,
    find_log_path,
    find_output_path,
)
from flashedge.daemon.process import _build_server, bind, listen, serve
from flashedge.errors import CheckpointError, ConfigError, DaemonError, EngineError
from tests.support.cli_rig import Patch, failing
from tests.support.commands import wait_for
from tests.support.paths import ROOT

STUB = (sys.executable, str(ROOT / "tests" / "support" / "stub_daemon.py"))


def has_ipv6() -> bool:
    try:
        bind("::1", 0).close()
    except DaemonError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    made = load_config({"port": free_port()}, {"FLASHEDGE_HOME": str(tmp_path)})
    yield made
    control.stop(made, timeout_s=5)


def start(config: Config) -> subprocess.Popen[bytes]:
    return control.start(config, {"port": config.port}, STUB)


def settings_of(config: Config) -> list[str]:
    """Those of a daemon's command line."""
    return [f"--set=state_dir={config.state_dir}", f"--set=port={config.port}"]


def up(config: Config) -> subprocess.Popen[bytes]:
    process = start(config)
    control.wait_ready(config, process, timeout_s=20)
    return process


def test_a_daemon_is_started_found_and_stopped(config: Config) -> None:
    process = up(config)
    record = control.find_daemon(config)
    assert record.pid == process.pid == files.find_holder(config)
    assert record.url == f"http://127.0.0.1:{config.port}"
    assert (control.stop(config), process.wait(60)) == (process.pid, 0)
    assert (control.find_daemon(config), files.find_record_path(config).exists()) == (None, False)
    assert control.stop(config) is None
    assert "daemon stopped" in files.find_log_path(config).read_text()


def test_a_second_daemon_names_the_first(config: Config) -> None:
    first = up(config)
    with pytest.raises(DaemonError, match=rf"is already running \(process {first.pid}\)"):
        start(config)
    command = [*STUB, *settings_of(config)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"is already running (process {first.pid})" in second.stderr
    assert second.returncode == DaemonError.exit_code
    assert files.find_holder(config) == first.pid


def test_who_uses_the_port_is_named(config: Config, tmp_path: Path) -> None:
    with bind("127.0.0.1", config.port):
        process = start(config)
        told = f"another program already uses port {config.port} on 127.0.0.1"
        with pytest.raises(DaemonError, match=told) as e:
            control.wait_ready(config, process, timeout_s=20)
    assert "--port" in (e.value.hint or "")
    assert (process.returncode, control.find_daemon(config)) == (DaemonError.exit_code, None)
    up(config)
    other = replace(config, state_dir=tmp_path / "other")
    with pytest.raises(DaemonError, match="a FlashEdge daemon of another state folder already"):
        control.wait_ready(other, start(other), timeout_s=20)


def test_a_stale_record_is_ignored(config: Config) -> None:
    files.prepare_state_dir(config)
    record = files.DaemonRecord(
        pid=os.getpid(), host="::", port=1, pair="bundled", started_at=3.0, version="0"
    )
    files.write_record(config, record)
    assert (files.read_record(config), record.url) == (record, "http://[::1]:1")
    assert replace(record, host="[::1]").url == record.url, "a host as in a URL"
    assert json.loads(files.find_record_path(config).read_text())["pid"] == os.getpid()
    assert control.find_daemon(config) is None
    assert control.stop(config) is None  # it must not kill this process
    for damaged in ("", "{", "[]", '{"pid": 1}'):
        files.find_record_path(config).write_text(damaged)
        assert control.find_daemon(config) is None
    killed = up(config)
    killed.kill()
    killed.wait(60)
    assert files.find_record_path(config).exists()
    assert control.find_daemon(config) is None
    up(config)
    found = control.find_daemon(config)
    assert found.pid not in (os.getpid(), killed.pid)


def test_stop_ends_process_and_children(config: Config, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STUB_BEHAVIOUR", "lingers")
    process = up(config)
    assert control.stop(config) == process.pid
    assert process.poll() == 0, "it has ended when the command returns"
    monkeypatch.setenv("STUB_BEHAVIOUR", "child")
    (child,) = psutil.Process(up(config).pid).children()
    control.stop(config)
    child.wait(60)


def test_wait_ready_waits_while_loading_and_raises_what_ends_the_daemon(
    config: Config, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("STUB_LOADS_S", "0.6")
    states: list[str] = []
    control.wait_ready(config, start(config), timeout_s=20, on_state=states.append)
    assert "starting: loading the weights" in states
    for behaviour, error, text in (
        ("failed", EngineError, "no memory"),
        ("crash", DaemonError, "boom"),
        ("bad checkpoint", CheckpointError, r"model\.safetensors is missing"),
    ):
        control.stop(config, timeout_s=5)
        monkeypatch.setenv("STUB_BEHAVIOUR", behaviour)
        process = start(config)
        with pytest.raises(error, match=text) as e:
            control.wait_ready(config, process, timeout_s=20)
        assert type(e.value) is error
    assert (e.value.hint, process.returncode) == ("pull it", CheckpointError.exit_code)


def test_a_daemon_in_the_foreground_stops_on_interrupt(config: Config) -> None:
    files.prepare_state_dir(config)
    process = subprocess.Popen([*STUB, *settings_of(config)])
    control.wait_ready(config, process, timeout_s=20)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130)
    assert files.find_holder(config) is None


def test_what_the_configuration_must_not_say(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    env = {"FLASHEDGE_HOME": str(tmp_path), "FLASHEDGE_HOST": "0.0.0.0"}
    with pytest.raises(ConfigError, match="can't write the state folder") as e:
        control.start(load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "file")}), {}, STUB)
    assert "FLASHEDGE_HOME" in (e.value.hint or "")
    with pytest.raises(ConfigError, match="no API key is set"):
        serve(load_config({}, env))
    check_exposure(load_config({"api_key": "k"}, env))
    with pytest.raises(DaemonError):
        bind("192.0.2.1", 0)
    for host in ("no.such.host.invalid", "no..such.host"):
        with pytest.raises(DaemonError, match="not an address"):
            bind(host, 0)
    (only,) = listen("0.0.0.0", 0)
    only.close()


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


@IPV6
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_localhost_is_both_loopback_addresses(host: str) -> None:
    """Node and some browsers take the one, most others the other."""
    with ExitStack() as opened:
        for _ in range(5):  # a port that is free on one address may be taken on the other
            sockets = [opened.enter_context(each) for each in listen(host, 0)]
            if len(sockets) > 1:
                break
        port = sockets[0].getsockname()[1]
        assert {each.getsockname()[0] for each in sockets} == {"127.0.0.1", "::1"}
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=5).close()


@IPV6
def test_one_loopback_address_is_enough(config: Config) -> None:
    """Another program may have the port of the other."""
    with bind("::1", config.port):
        (only,) = listen("127.0.0.1", config.port)
        only.close()
    with bind("127.0.0.1", config.port), pytest.raises(DaemonError, match="already uses port"):
        listen("127.0.0.1", config.port)


def test_a_wrong_setting_on_the_command_line_is_refused(config: Config) -> None:
    done = subprocess.run([*STUB, "--set", "prot=1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown key 'prot' in the command; did you mean 'port'?")


def test_a_port_in_use_is_reported_before_the_slow_imports(config: Config) -> None:
    with bind("127.0.0.1", config.port):
        code = f"""
import sys
from flashedge.daemon.process import main
code = main({settings_of(config)})
heavy = [m for m in ("torch", "vllm", "fastapi", "transformers") if m in sys.modules]
print(code, heavy)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.split(maxsplit=1) == ["4", "[]\n"]


def test_clients_drop_idle_connections_before_the_daemon_does(config: Config) -> None:
    """The openai and anthropic packages keep them for 5 seconds, as uvicorn would."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _build_server(None, config, listening)
    assert server.config.timeout_keep_alive > 60


LINE = "run run-0123456789ab finished: 1.0 s, 100 tokens"


@pytest.fixture
def own_logging(monkeypatch: Patch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_logs_rotate(config: Config, own_logging: None, monkeypatch: Patch) -> None:
    files.prepare_state_dir(config)
    monkeypatch.setattr(process, "LOG_BYTES", 2000)
    process._configure_logging(config)
    for i in range(500):
        logging.getLogger("flashedge.runtime.run").info("%s, number %d", LINE, i)
    kept = sorted(find_log_path(config).parent.glob("daemon.log*"))
    assert [path.name for path in kept] == ["daemon.log", *(f"daemon.log.{i}" for i in (1, 2, 3))]
    assert all(path.stat().st_size <= 2000 for path in kept)
    assert find_log_path(config).read_text().splitlines()[-1].endswith(f"{LINE}, number 499")


def test_a_long_output_is_kept_once_and_begins_anew(config: Config) -> None:
    """Whoever holds the file open goes on writing at its end."""
    files.prepare_state_dir(config)
    path = find_output_path(config)
    path.unlink()
    bound_output(config)
    assert not path.exists(), "one that is not there is none"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"first\n")
        bound_output(config)
        assert path.read_bytes() == b"first\n"
        writer.write(b"x" * files.OUTPUT_BYTES)
        bound_output(config)
        writer.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    assert find_kept_output_path(config).stat().st_size == files.OUTPUT_BYTES + 6


def test_a_full_disk_costs_the_copy_only(config: Config, monkeypatch: Patch) -> None:
    files.prepare_state_dir(config)
    find_output_path(config).write_bytes(b"x" * (files.OUTPUT_BYTES + 1))
    monkeypatch.setattr(shutil, "copyfile", failing(OSError(errno.ENOSPC, "No space left")))
    bound_output(config)
    assert find_output_path(config).stat().st_size == 0


def test_a_running_daemon_bounds_output(config: Config, monkeypatch: Patch) -> None:
    monkeypatch.setenv("STUB_BEHAVIOUR", "chatty")
    up(config)
    wait_for(lambda: find_output_path(config).stat().st_size == 0)
    assert find_kept_output_path(config).stat().st_size > files.OUTPUT_BYTES
