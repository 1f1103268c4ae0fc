"""A client follows a run's events across the death of the daemon: none twice, none left out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx

from flashedge.config import Config
from flashedge.daemon import control, files
from tests.support.api_rig import frames
from tests.support.commands import SIMULATED, wait_for

ASK = {"problem": "How many are left?", "n": 8, "seed": 3}
LONG = {**ASK, "n": 200, "max_steps": 200}


def url_of(config: Config) -> str:
    record = files.find(config)
    assert record is not None
    return record.url


def restart(config: Config, killed: subprocess.Popen[bytes]) -> str:
    """Kill the daemon and start another over its store. Returns where it listens."""
    killed.kill()
    killed.wait(60)
    process = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, process, timeout_s=60)
    return url_of(config)


def read_events(url: str, run: str, after: int = 0) -> list[dict[str, Any]]:
    headers = {"last-event-id": str(after)} if after else {}
    text = httpx.get(f"{url}/v1/runs/{run}/events", headers=headers, timeout=60).text
    return [event for event in frames(text) if event["event"] != "Progress"]


def read_live(lines: Iterator[str], count: int) -> list[dict[str, Any]]:
    """The next events of an open stream that are kept."""
    found: list[dict[str, Any]] = []
    block = ""
    while len(found) < count:
        line = next(lines)
        block += line + "\n"
        if not line:
            found += [event for event in frames(block) if event["event"] != "Progress"]
            block = ""
    return found[:count]


def test_a_finished_run_goes_on_where_the_client_stopped(
    config: Config, daemon: subprocess.Popen[bytes]
) -> None:
    url = url_of(config)
    body = {**ASK, "detach": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/solve", json=body, timeout=60) as stream:
        run = stream.headers["x-flashedge-run"]
        lines = stream.iter_lines()
        while not next(lines).startswith("id: "):
            pass  # the place in the queue comes first, without a number
        read_live(lines, 7)
    wait_for(lambda: httpx.get(f"{url}/v1/runs/{run}").json()["status"] == "finished")
    whole = read_events(url, run)
    assert [int(event["id"]) for event in whole] == list(range(1, len(whole) + 1))
    assert whole[-1]["event"] == "RunFinished"
    url = restart(config, daemon)
    for after in (0, 1, 7, len(whole) - 1, len(whole)):
        assert read_events(url, run, after) == whole[after:]


def test_what_was_seen_of_a_run_that_the_kill_cut_is_the_beginning_of_its_log(
    config: Config, daemon: subprocess.Popen[bytes]
) -> None:
    url = url_of(config)
    run = httpx.post(f"{url}/v1/runs", json=LONG).json()["id"]
    with httpx.stream("GET", f"{url}/v1/runs/{run}/events", timeout=60) as stream:
        seen = read_live(stream.iter_lines(), 12)
        time.sleep(0.1)  # more are stored than were read
        url = restart(config, daemon)
    assert httpx.get(f"{url}/v1/runs/{run}").json()["status"] == "interrupted"
    whole = read_events(url, run)
    assert whole[: len(seen)] == seen
    assert [int(event["id"]) for event in whole] == list(range(1, len(whole) + 1))
    last = int(seen[-1]["id"])
    assert seen + read_events(url, run, last) == whole
