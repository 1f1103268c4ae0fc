"""Daemons, batches and clients that are killed: nothing is lost, solved or told twice."""

import json
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.config import Config
from tests.support.api_rig import frames, post_bytes
from tests.support.commands import CLI, cli, list_runs, start_simulated, url_of, wait_for

NUM = 16


class Served:
    """The daemon of one state folder, whichever process it is."""

    def __init__(self, config: Config) -> None:
        self.config, self.process = config, start_simulated(config)

    @property
    def url(self) -> str:
        return url_of(self.config)

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=60).json()

    def read_events(self, run: str, after: int = 0) -> list[dict[str, Any]]:
        headers = {"last-event-id": str(after)} if after else {}
        text = httpx.get(f"{self.url}/v1/runs/{run}/events", headers=headers, timeout=60).text
        return [event for event in frames(text) if event["event"] != "Progress"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def restart(self) -> None:
        """Kill the daemon and start another over its store."""
        self.kill()
        self.process = start_simulated(self.config)


@pytest.fixture
def served(config: Config, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("FLASHEDGE_QUEUE_LIMIT", "10000")
    return Served(config)


# ---------------------------------------------------------------- batches


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    problems = [{"id": f"p{i}", "problem": f"How many are {i}?", "answer": "7"} for i in range(NUM)]
    source = tmp_path / "problems.jsonl"
    source.write_text("".join(json.dumps(p) + "\n" for p in problems))
    target = str(tmp_path / "results.jsonl")
    return ("solve", "--input", str(source), "--output", target, "-n", "12", "--jobs", "6")


def records(command: tuple[str, ...]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(command[4]).read_text().splitlines()]


def lines(command: tuple[str, ...]) -> int:
    target = Path(command[4])
    return target.read_bytes().count(b"\n") if target.exists() else 0


def begun(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen([*CLI, *command], stdout=null, stderr=null)


def kill_in_the_middle(command: tuple[str, ...], times: int) -> int:
    """SIGKILL at random moments, and a torn last line; how often it was still at work."""
    chance, killed = random.Random(5), 0
    for _ in range(times):
        process, before = begun(command), lines(command)
        wait_for(lambda p=process, b=before: lines(command) > b or p.poll() is not None)
        time.sleep(chance.random() * 0.2)
        killed += process.poll() is None
        process.kill()
        process.wait(60)
        with Path(command[4]).open("ab") as out:
            out.write(b'{"id": "p3", "ans')
    return killed


def test_no_problem_is_lost_or_solved_twice(served: Served, command: tuple[str, ...]) -> None:
    assert kill_in_the_middle(command, 3) >= 2
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert f"{NUM} of {NUM} solved" in done.stdout
    found = records(command)
    assert sorted(r["id"] for r in found) == sorted(f"p{i}" for i in range(NUM))
    kept = list_runs()
    assert len(kept) == NUM
    assert {r["id"]: (r["answer"], r["tree_tokens"], r["total_s"]) for r in kept} == {
        r["run"]: (r["answer"], r["tokens"], r["seconds"]) for r in found
    }


def test_ctrl_c_then_on(served: Served, command: tuple[str, ...]) -> None:
    process = begun(command)
    wait_for(lambda: lines(command) > 0)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    kept = records(command)
    assert 0 < len(kept) < NUM
    assert list_runs("running") == list_runs("queued") == []
    assert cli(*command).returncode == 0
    assert records(command)[: len(kept)] == kept
    assert len({r["id"] for r in records(command)}) == len(records(command)) == NUM
    assert sum(r["status"] == "finished" for r in list_runs()) == NUM


def test_a_killed_daemon(served: Served, command: tuple[str, ...]) -> None:
    process = begun(command)
    wait_for(lambda: lines(command) > 2)
    served.kill()
    assert process.wait(60) == 4
    kept = records(command)
    served.restart()
    assert cli(*command).returncode == 0
    found = records(command)
    assert found[: len(kept)] == kept
    assert len({r["id"] for r in found}) == len(found) == NUM


@pytest.mark.long
def test_a_shared_budget_over_kills(served: Served, command: tuple[str, ...]) -> None:
    """Each problem's last run holds its whole tree; what a continued run holds is its beginning.
    It takes half a minute."""
    total = 60_000
    command = (*command, "--strategy", "beam", "--budget-tokens-total", str(total))
    kill_in_the_middle(command, 3)
    done = cli(*command, "--json")
    assert done.returncode == 0, done.stderr
    found = records(command)
    assert len({r["id"] for r in found}) == len(found) == NUM
    assert all(r["cut_by"] in (None, "budget") for r in found)
    assert json.loads(done.stdout)["tokens"] == sum(r["tokens"] for r in found)
    assert any(run["id"].endswith("-1") for run in list_runs()), "some were given more"
    by_problem: dict[str, int] = {}
    for run in list_runs():
        index = run["id"].split("-")[2]
        by_problem[index] = max(by_problem.get(index, 0), run["tree_tokens"])
    assert sum(by_problem.values()) == sum(r["tokens"] for r in found)


# ---------------------------------------------------------------- a client that follows a run


ASK = {"problem": "How many are left?", "n": 8, "seed": 3}
LONG = {**ASK, "n": 200, "max_steps": 200}


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


def test_a_finished_run_is_the_same_live_stored_and_replayed(served: Served) -> None:
    """And it goes on where its client stopped, whichever process tells it."""
    body = {**ASK, "detach": True, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/solve", json=body, timeout=60) as stream:
        run = stream.headers["x-flashedge-run"]
        lines = stream.iter_lines()
        while not next(lines).startswith("id: "):
            pass  # the place in the queue comes first, without a number
        read_live(lines, 7)
    whole = served.read_events(run)  # to the end of the run
    assert [int(event["id"]) for event in whole] == list(range(1, len(whole) + 1))
    assert whole[-1]["event"] == "RunFinished"
    stored = served.get(f"/v1/runs/{run}")
    assert stored == {**whole[-1]["data"]["result"], "stored": True}
    served.restart()
    for after in (0, 1, 5, 7, len(whole) - 1, len(whole)):
        assert served.read_events(run, after) == whole[after:]
    streamed = httpx.post(f"{served.url}/v1/solve", json={**ASK, "stream": True}, timeout=60).text
    _, *kept = [event for event in frames(streamed) if event["event"] != "Progress"]
    again = httpx.post(f"{served.url}/v1/solve", json=ASK, timeout=60).json()
    assert served.read_events(served.get("/v1/runs")["data"][1]["id"]) == kept
    for name in ("tree", "text", "completions", "votes"):
        assert again[name] == stored[name]


def test_what_was_seen_of_a_run_that_the_kill_cut_is_the_beginning_of_its_log(
    served: Served,
) -> None:
    run = httpx.post(f"{served.url}/v1/runs", json=LONG).json()["id"]
    with httpx.stream("GET", f"{served.url}/v1/runs/{run}/events", timeout=60) as stream:
        seen = read_live(stream.iter_lines(), 12)
        time.sleep(0.1)  # more are stored than were read
        served.restart()
    assert served.get(f"/v1/runs/{run}")["status"] == "interrupted"
    whole = served.read_events(run)
    assert whole[: len(seen)] == seen
    assert [int(event["id"]) for event in whole] == list(range(1, len(whole) + 1))
    assert seen + served.read_events(run, int(seen[-1]["id"])) == whole


# ---------------------------------------------------------------- a thousand clients that leave


DISCONNECTS, KILLS = 1000, 12
SUM = {"problem": "1 + 1?", "n": 8}
CHAT = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
SEARCH = {**CHAT, "model": "bundled:beam-4"}
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/solve", SUM),
    ("/v1/solve", {**SUM, "stream": True}),
    ("/v1/runs", SUM),
    ("/v1/score", {"problem": "1 + 1?", "solution": ["Two.\n\nSo two.", "Three."]}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "n": 3}),
    ("/v1/chat/completions", {**SEARCH, "stream": True}),
    ("/v1/messages", {**SEARCH, "max_tokens": 50}),
    ("/v1/responses", {"model": "bundled:dvts-4", "input": "hi", "stream": True}),
)
LEAVING = (*KINDS[:2], *KINDS[4:7])
"""Three in five start a run that ends with its client."""


def leave_in_the_middle(
    url: str, draw: random.Random, kinds: Sequence[tuple[str, dict[str, Any]]] = KINDS
) -> None:
    """Send a request of any kind, whole or in part, and close the connection some time later."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    text = post_bytes(*draw.choice(kinds))
    if draw.random() < 0.1:
        text = text[: draw.randrange(len(text))]
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(text)
    time.sleep(draw.random() * 0.04)
    if draw.random() < 0.3:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.recv(4096)
    connection.close()


def ask_while_it_is_killed(url: str, seed: int, kill: Callable[[], None]) -> dict[str, Any] | None:
    """An answer that arrived whole although the daemon dies about now."""
    body = {**SUM, "seed": seed, "stream": True}
    text, is_killed = "", False
    with (
        suppress(httpx.HTTPError),
        httpx.stream("POST", f"{url}/v1/solve", json=body, timeout=60) as answer,
    ):
        for line in answer.iter_lines():
            text += line + "\n"
            if seed % 2 and line == "event: StepCompleted" and not is_killed:
                kill()
                is_killed = True
    if not is_killed:
        kill()
    ends = [event for event in frames(text) if event.get("event") == "RunFinished"]
    return ends[0]["data"]["result"] if ends else None


def assert_idle(served: Served) -> None:
    """No run is open, and no KV block is held."""
    wait_for(lambda: served.get("/v1/status")["runs"] == {"queued": 0, "running": 0}, 120)
    for engine in served.get("/v1/status")["engines"].values():
        view = engine["view"]
        assert (view["running"], view["waiting"], view["blocks_used"]) == (0, 0, 0)


def test_nothing_is_left_of_clients_that_leave(served: Served) -> None:
    draw = random.Random(0)
    for _ in range(100):
        leave_in_the_middle(served.url, draw, LEAVING)
    assert_idle(served)
    runs = served.get("/v1/runs?limit=1000")["data"]
    assert {r["status"] for r in runs} <= {"finished", "cancelled"}
    assert sum(r["status"] == "cancelled" for r in runs) > 40


@pytest.mark.long
def test_nothing_is_lost_and_nothing_stays(served: Served) -> None:
    """Two minutes. The store's log of each run is whole. `scripts.bench.foundation.mixed_load` does
    the like with real engines, which it kills, for an hour."""
    draw = random.Random(0)
    results: dict[str, dict[str, Any]] = {}
    for round_ in range(KILLS):
        url = served.url
        for _ in range(DISCONNECTS // KILLS + 1):
            leave_in_the_middle(url, draw)
        found = ask_while_it_is_killed(url, round_, served.restart)
        if found is not None:
            results[found["id"]] = found
        whole = httpx.post(f"{served.url}/v1/solve", json={**SUM, "seed": 99}, timeout=60).json()
        results[whole["id"]] = whole

    assert_idle(served)
    assert len(results) >= KILLS
    for run, result in results.items():
        stored = served.get(f"/v1/runs/{run}")
        assert stored == {**json.loads(json.dumps(result)), "stored": True}
    runs = served.get("/v1/runs?limit=1000")["data"]
    assert {run["status"] for run in runs} <= {"finished", "cancelled", "interrupted"}
    assert sum(run["status"] == "interrupted" for run in runs) >= KILLS // 2 - 1
    assert sum(run["status"] == "cancelled" for run in runs) > DISCONNECTS // 10
    for run in runs:
        log = frames(httpx.get(f"{served.url}/v1/runs/{run['id']}/events").text)
        assert [int(event["id"]) for event in log] == list(range(1, len(log) + 1))
        if run["status"] == "finished":
            assert log[-1]["event"] == "RunFinished"
