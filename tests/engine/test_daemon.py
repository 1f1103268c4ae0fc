"""The whole product as a user runs it: the command line, the daemon's process, real engines."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.bench.daemon import Daemon
from tests.clients.run import CLIENTS, WORKS
from tests.support import agent_suite, openai_suite, tool_suite
from tests.support.examples import find_answer, list_examples
from tests.support.openai_suite import Check, Clients
from tests.support.paths import DATA, ROOT
from tests.support.random_bodies import check_answer

EASY = DATA / "heldout_easy.jsonl"

TOOL_CALLERS = ("tool-caller", "tool-caller:self_consistency-4", "tool-caller:beam-4")


def name_checks(checks: Iterable[Check]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


@pytest.fixture(scope="session")
def clients(served: Daemon) -> Clients:
    return Clients(served.url)


@name_checks((*openai_suite.CHECKS, *agent_suite.CHECKS))
def test_openai_and_anthropic_packages_work(clients: Clients, check: Check) -> None:
    check(clients, "bundled")


@pytest.mark.parametrize("model", ["bundled:beam-4", "bundled:self_consistency-4"])
@name_checks(agent_suite.SEARCH_CHECKS)
def test_agents_search(clients: Clients, check: Check, model: str) -> None:
    check(clients, model)


@pytest.mark.parametrize("model", TOOL_CALLERS)
@name_checks(tool_suite.CHECKS)
def test_a_model_calls_tools_by_itself(clients: Clients, check: Check, model: str) -> None:
    check(clients, model)


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
def test_coding_agents_requests_are_answered(client: httpx.Client, agent: Path, model: str) -> None:
    """Requests that coding agents sent; see tests/data/agent_requests/README.md. All stream."""
    asked = [row for row in json.loads(agent.read_text())["requests"] if row["method"] == "POST"]
    assert asked
    for request in asked:
        body = {**request["body"], "model": model}
        answer = client.post(request["path"], json=body, headers=request["headers"])
        assert answer.status_code == 200, answer.text
        check_answer(request["path"].partition("?")[0], answer)
        events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert len(events) > 3
        assert '"error":{' not in events[-1]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
def test_claude_codes_conversations_are_counted(client: httpx.Client, model: str) -> None:
    """With its tools, thinking, instructions and marks for a cache."""
    requests = json.loads((DATA / "agent_requests" / "claude_code.json").read_text())["requests"]
    counts = []
    for request in (row for row in requests if row["method"] == "POST"):
        body = {name: v for name, v in request["body"].items() if name != "stream"}
        body["model"] = model
        counted = client.post("/v1/messages/count_tokens?beta=true", json=body, timeout=60)
        assert counted.status_code == 200, counted.text
        counts.append(counted.json()["input_tokens"])
        short = {**body, "max_tokens": 5}
        usage = client.post("/v1/messages", json=short, timeout=60).json()["usage"]
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
        assert counts[-1] == usage["input_tokens"] + sum(usage.get(name) or 0 for name in cached)
    assert counts[0] < counts[1], "the second has a call and its result"


def test_a_search_names_the_field_that_is_wrong(client: httpx.Client) -> None:
    body = {"model": "bundled:beam-4", "messages": [{"role": "system", "content": "x"}]}
    answer = client.post("/v1/chat/completions", json=body, timeout=60)
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


PLACES = {problem: place for place, problem in list_examples()}


@pytest.mark.parametrize("problem", sorted(PLACES))
def test_a_problem_that_is_shown_to_users_is_solved(served: Daemon, problem: str) -> None:
    answer = find_answer(PLACES[problem], problem)
    assert served.solve(problem, "-n", "16", "--seed", "0")["answer"] == answer


def test_the_answer_is_the_last_thing_printed(served: Daemon) -> None:
    item = json.loads(EASY.read_text().splitlines()[0])
    done = served.run_cli("solve", item["problem"], "-n", "4", "--quiet")
    assert done.returncode == 0
    assert done.stdout.strip() == item["answer"]


def test_the_self_test_finds_batch_invariance(served: Daemon) -> None:
    status = json.loads(served.run_cli("ps", "--json").stdout)
    assert status["self_test"]["batch_invariant"] is True
    assert status["pid"] != os.getpid()
