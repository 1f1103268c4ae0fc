"""The whole product as a user runs it: the command line, the daemon's process, real engines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.bench.daemon import Daemon
from tests.clients.run import CLIENTS, WORKS
from tests.support import agent_suite, openai_suite, tool_suite
from tests.support.commands import wait_for
from tests.support.paths import DATA, ROOT
from tests.support.random_bodies import check_answer

EASY = DATA / "heldout_easy.jsonl"


TOOL_CALLERS = ("tool-caller", "tool-caller:self_consistency-4", "tool-caller:beam-4")


@pytest.mark.parametrize("check", openai_suite.CHECKS, ids=lambda c: c.__name__)
def test_the_openai_package_works(served: Daemon, check: openai_suite.Check) -> None:
    check(served.url, "bundled")


@pytest.mark.parametrize("check", agent_suite.CHECKS, ids=lambda c: c.__name__)
def test_agents_connect(served: Daemon, check: agent_suite.Check) -> None:
    check(served.url, "bundled")


@pytest.mark.parametrize("model", ["bundled:beam-4", "bundled:self_consistency-4"])
@pytest.mark.parametrize("check", agent_suite.SEARCH_CHECKS, ids=lambda c: c.__name__)
def test_agents_search(served: Daemon, check: agent_suite.Check, model: str) -> None:
    check(served.url, model)


@pytest.mark.parametrize("model", TOOL_CALLERS)
@pytest.mark.parametrize("check", tool_suite.CHECKS, ids=lambda c: c.__name__)
def test_a_model_calls_tools_by_itself(served: Daemon, check: tool_suite.Check, model: str) -> None:
    check(served.url, model)


@pytest.fixture(scope="module")
def frameworks(served: Daemon) -> dict[str, Any]:
    """client -> feature -> model -> "works" or the error. A minute."""
    subprocess.run(["bash", "scripts/clients.sh"], cwd=ROOT, check=True, timeout=400)
    python = ROOT / ".venv-clients" / "bin" / "python"
    command = [python, "-m", "tests.clients.run", served.url, "bundled", "bundled:beam-4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    table: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return table


@pytest.mark.parametrize("client", CLIENTS)
def test_frameworks_work_unmodified(frameworks: dict[str, Any], client: str) -> None:
    for feature, by_model in frameworks[client].items():
        assert set(by_model.values()) == {WORKS}, (feature, by_model)


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
@pytest.mark.parametrize(
    "agent", sorted((DATA / "agent_requests").glob("*.json")), ids=lambda p: p.stem
)
def test_coding_agents_requests_are_answered(served: Daemon, agent: Path, model: str) -> None:
    """Requests that coding agents sent; see tests/data/agent_requests/README.md. All stream."""
    asked = [row for row in json.loads(agent.read_text())["requests"] if row["method"] == "POST"]
    assert asked
    for request in asked:
        answer = httpx.post(
            served.url + request["path"],
            json={**request["body"], "model": model},
            headers=request["headers"],
            timeout=120,
        )
        assert answer.status_code == 200, answer.text
        check_answer(request["path"].partition("?")[0], answer)
        events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert len(events) > 3
        assert '"error":{' not in events[-1]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
def test_claude_codes_conversations_are_counted(served: Daemon, model: str) -> None:
    """With its tools, thinking, instructions and marks for a cache."""
    requests = json.loads((DATA / "agent_requests" / "claude_code.json").read_text())["requests"]
    counts = []
    for request in (row for row in requests if row["method"] == "POST"):
        body = {name: v for name, v in request["body"].items() if name != "stream"}
        counted = httpx.post(
            f"{served.url}/v1/messages/count_tokens?beta=true",
            json={**body, "model": model},
            timeout=60,
        )
        assert counted.status_code == 200, counted.text
        counts.append(counted.json()["input_tokens"])
        short = {**body, "model": model, "max_tokens": 5}
        usage = httpx.post(f"{served.url}/v1/messages", json=short, timeout=60).json()["usage"]
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
        assert counts[-1] == usage["input_tokens"] + sum(usage.get(name) or 0 for name in cached)
    assert counts[0] < counts[1], "the second has a call and its result"


def test_a_search_names_the_field_that_is_wrong(served: Daemon) -> None:
    body = {"model": "bundled:beam-4", "messages": [{"role": "system", "content": "x"}]}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


def test_easy_problems_get_right_answers_and_the_stock_loops_trees(served: Daemon) -> None:
    items = [json.loads(line) for line in EASY.read_text().splitlines()[:2]]
    right = 0
    for item in items:
        ours = served.solve(item["problem"], "-n", "8")
        stock = served.solve(item["problem"], "-n", "8", "--set", "baseline=true")
        assert ours["tree"] == stock["tree"]
        right += ours["answer"] == item["answer"]
    assert right


def test_the_answer_is_the_last_thing_printed(served: Daemon) -> None:
    item = json.loads(EASY.read_text().splitlines()[0])
    done = served.run_cli("solve", item["problem"], "-n", "4", "--quiet")
    assert done.returncode == 0
    assert done.stdout.strip() == item["answer"]


def test_the_self_test_finds_batch_invariance(served: Daemon) -> None:
    def read_status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(served.run_cli("ps", "--json").stdout)
        return found

    wait_for(lambda: read_status()["self_test"])  # it goes on while the pair serves
    status = read_status()
    assert status["self_test"]["batch_invariant"] is True
    assert status["pid"] != os.getpid()
