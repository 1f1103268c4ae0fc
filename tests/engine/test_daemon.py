"""The whole product as a user runs it: the command line, the daemon's process, real engines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from scripts.bench.daemon import Daemon, start_daemon
from tests.support import agent_suite, openai_suite
from tests.support.paths import DATA

EASY = DATA / "heldout_easy.jsonl"


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    with start_daemon() as running:
        yield running


@pytest.mark.parametrize("check", openai_suite.CHECKS, ids=lambda c: c.__name__)
def test_the_openai_package_works(served: Daemon, check: openai_suite.Check) -> None:
    check(served.url, "bundled", "none")


@pytest.mark.parametrize("check", agent_suite.CHECKS, ids=lambda c: c.__name__)
def test_agents_connect(served: Daemon, check: agent_suite.Check) -> None:
    check(served.url, "bundled")


@pytest.mark.parametrize("model", ["bundled:beam-4", "bundled:self_consistency-4"])
@pytest.mark.parametrize("check", agent_suite.SEARCH_CHECKS, ids=lambda c: c.__name__)
def test_agents_search(served: Daemon, check: agent_suite.Check, model: str) -> None:
    check(served.url, model)


def test_easy_problems_get_right_answers_and_the_stock_loops_trees(served: Daemon) -> None:
    items = [json.loads(line) for line in EASY.read_text().splitlines()[:2]]
    right = 0
    for item in items:
        ours = served.solve(item["problem"], "-n", "8")
        stock = served.solve(item["problem"], "-n", "8", "--baseline")
        assert ours["tree"] == stock["tree"]
        right += ours["answer"] == item["answer"]
    assert right


def test_the_answer_is_the_last_thing_printed(served: Daemon) -> None:
    item = json.loads(EASY.read_text().splitlines()[0])
    done = served.run_cli("solve", item["problem"], "-n", "4", "--quiet")
    assert done.returncode == 0
    assert done.stdout.strip() == item["answer"]


def test_the_self_test_finds_batch_invariance(served: Daemon) -> None:
    status = json.loads(served.run_cli("ps", "--json").stdout)
    assert status["self_test"]["batch_invariant"] is True
    assert status["pid"] != os.getpid()
