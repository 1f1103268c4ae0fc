"""A daemon that gives the memory of idle engines back, and loads pairs when they are asked for."""

import socket
import subprocess
import threading
from contextlib import suppress

import httpx
import psutil

from flashedge.config import Config
from flashedge.daemon import control, files
from tests.support.commands import cli, start_simulated, url_of, wait_for

ASK = {"problem": "How many are left?", "n": 2}
SECOND = """
[pairs."second"]
description = "The bundled pair by another name."
generator = "bundled"
verifier = "bundled"
max_step_tokens = 192
max_path_tokens = 768
"""


def read_state(url: str) -> str:
    return str(httpx.get(f"{url}/health", timeout=60).json()["status"])


def test_idle_engines_are_unloaded_and_the_next_request_loads_them(
    config: Config, daemon: subprocess.Popen[bytes]
) -> None:
    url = url_of(config)
    started_at = files.read_record(config)
    first = httpx.post(f"{url}/v1/solve", json={**ASK, "keep_alive": "200ms"}, timeout=60).json()
    wait_for(lambda: read_state(url) == "unloaded")
    process = psutil.Process(daemon.pid)
    assert "--inherited" in " ".join(process.cmdline())
    assert process.children(recursive=True) == []
    assert files.read_record(config) == started_at, "it is the same daemon to its users"
    assert cli("ps").returncode == 0
    again = httpx.post(f"{url}/v1/solve", json=ASK, timeout=60).json()
    assert (again["text"], again["tree"]) == (first["text"], first["tree"])
    assert read_state(url) == "ready"
    listed = httpx.get(f"{url}/v1/runs", timeout=60).json()["data"]
    assert [run["id"] for run in listed] == [again["id"], first["id"]]
    assert control.stop(config) == daemon.pid
    assert not files.find_record_path(config).exists()


def test_no_client_is_refused_while_the_process_is_replaced(
    config: Config, daemon: subprocess.Popen[bytes]
) -> None:
    """A new connection is answered at any moment, after a second at most, at both addresses."""
    url, codes, is_over = url_of(config), [], threading.Event()
    urls = [url]
    with suppress(OSError):
        socket.create_connection(("::1", config.port), timeout=5).close()
        urls.append(f"http://[::1]:{config.port}")

    def ask_on_and_on() -> None:
        while not is_over.is_set():
            codes.extend(httpx.get(f"{each}/health", timeout=60).status_code for each in urls)

    asking = threading.Thread(target=ask_on_and_on)
    asking.start()
    try:
        for _ in range(2):
            assert cli("unload").returncode == 0
            wait_for(lambda: read_state(url) == "unloaded")
            control.wait_ready(config, timeout_s=120)  # tells it to load
    finally:
        is_over.set()
        asking.join()
    assert set(codes) == {200} or set(codes) == {200, 503}, "503: it loads"
    assert read_state(url) == "ready"


def test_engines_in_use_stay(config: Config, daemon: subprocess.Popen[bytes]) -> None:
    url = url_of(config)
    with httpx.stream("POST", f"{url}/v1/solve", json={**ASK, "stream": True}) as stream:
        httpx.post(f"{url}/v1/unload", timeout=60)
        text = "".join(stream.iter_text())
    assert "RunFinished" in text
    wait_for(lambda: read_state(url) == "unloaded")


def test_another_pair_is_loaded_on_demand(config: Config) -> None:
    """One at a time by default: the first one is unloaded as soon as nobody uses it."""
    config.config_dir.mkdir(parents=True, exist_ok=True)
    (config.config_dir / "models.toml").write_text(SECOND, encoding="utf-8")
    start_simulated(config)
    with httpx.Client(base_url=url_of(config), timeout=60) as client:
        assert list(client.get("/v1/status").json()["loaded"]) == ["bundled"]
        for pair in ("second", "bundled"):
            assert client.post("/v1/solve", json={**ASK, "pair": pair}).json()["pair"] == pair
            assert list(client.get("/v1/status").json()["loaded"]) == [pair]
