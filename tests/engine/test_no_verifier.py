"""A pair without a verifier, on a real engine."""

from collections.abc import Iterator

import httpx
import pytest

from flashedge.api.paths import CHAT
from flashedge.client.async_client import AsyncClient
from scripts.bench.daemon import Daemon, start_daemon
from scripts.bench.real.measure import Solver, order_problems
from scripts.bench.real.records import Record, Way
from tests.support.paths import DATA
from tests.support.tool_suite import TOOL

MODELS = """
[pairs.alone]
description = "the bundled generator alone"
generator = "bundled"
verifier = "none"
max_step_tokens = 64
max_path_tokens = 256
system_prompt = "Dan has 24 nuts."
"""
SAY = "What is 12 + 7?"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("config")
    (folder / "models.toml").write_text(MODELS, encoding="utf-8")
    with start_daemon(config_dir=folder, pair="alone") as running:
        yield running


def test_it_votes_and_refuses_what_needs_scores(alone: Daemon) -> None:
    found = alone.solve(SAY, "-n", "4", "--deterministic")
    assert (found["strategy"], len(found["votes"]) > 0) == ("self_consistency", True)
    assert not any("verifier" in name for name in found["fingerprint"])
    done = alone.run_cli("solve", "--strategy", "beam", SAY)
    assert (done.returncode, "the pair has no verifier" in done.stderr) == (2, True)
    body = {"problem": SAY, "solution": "19"}
    answer = httpx.post(f"{alone.url}/v1/score", json=body, timeout=60)
    assert (answer.status_code, "no verifier" in answer.text) == (400, True)


def test_one_process_serves(alone: Daemon) -> None:
    verifier = httpx.get(f"{alone.url}/v1/status").json()["engines"]["verifier"]
    assert (verifier["state"], verifier["pid"]) == ("unused", None)
    done = alone.run_cli("ps")
    assert (done.returncode, "unused" in done.stdout) == (0, True)


def test_the_system_prompt_is_of_searches(alone: Daemon) -> None:
    """By the prompt's tokens. An agent's request, with tools, gets none either."""

    def count(model: str, **more: object) -> int:
        body = {"model": model, "messages": [{"role": "user", "content": SAY}], "max_tokens": 40}
        answer = httpx.post(f"{alone.url}{CHAT}", json=body | more, timeout=60).json()
        return int(answer["usage"]["prompt_tokens"])

    vote = "alone:self_consistency-2"
    assert count(vote) > count("alone")
    assert count(vote, tools=[TOOL]) == count("alone", tools=[TOOL])


async def test_its_figures_come_from_samples_that_nobody_scored(alone: Daemon) -> None:
    records: list[Record] = []
    pair = {"name": "alone", "verifier": None, "seed": 3}
    (at,) = order_problems([DATA / "heldout.jsonl"], [1])
    async with AsyncClient(alone.url) as client:
        solver = Solver(client, pair, {}, alone=False, append=records.append)
        try:
            await solver.solve_all([(at, Way("samples", 4)), (at, Way("greedy", 1))], 2)
        finally:
            await solver.grader.close()
    assert sorted((r.way, len(r.paths), r.error) for r in records) == [
        ("greedy", 1, None),
        ("samples-4", 4, None),
    ]
