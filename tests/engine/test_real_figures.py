"""Shared samples stand for real runs: the real engines draw the same paths for fewer of them."""

from pathlib import Path

from flashedge.client.async_client import AsyncClient
from scripts.bench.daemon import Daemon
from scripts.bench.real.measure import Solver, order_problems
from scripts.bench.real.records import Record, Way
from scripts.bench.real.table import choose_answer
from tests.support.paths import DATA

PAIR = {"name": "bundled", "verifier": "bundled", "seed": 3}


async def test_the_first_samples_are_those_of_a_smaller_run(served: Daemon, tmp_path: Path) -> None:
    problems = order_problems([DATA / "heldout.jsonl"], [3])
    ways = [Way("samples", 8), *(Way(name, 4) for name in ("vote", "weighted", "best_of_n"))]
    ways_and_searches = [*ways, Way("greedy", 1), Way("beam", 4)]
    tasks = [(at, way) for at in problems for way in ways_and_searches]
    records: list[Record] = []
    async with AsyncClient(served.url) as client:
        solver = Solver(client, PAIR, {}, alone=False, append=records.append)
        try:
            await solver.solve_all(tasks, 4)
        finally:
            await solver.grader.close()
    found = {(record.problem, record.way): record for record in records}
    assert len(found) == len(tasks)
    assert all(record.error is None and record.seconds > 0 for record in records)
    for digest in (at.digest for at in problems):
        drawn = found[digest, "samples-8"]
        for way in ways[1:]:
            real = found[digest, str(way)]
            assert [p.tokens for p in real.paths] == [p.tokens for p in drawn.paths[:4]]
            assert real.answer == choose_answer(drawn.paths[:4], way.name)
            assert real.right == any(p.right for p in real.paths if p.answer == real.answer)
        assert len(found[digest, "beam-4"].paths) == 4
        assert found[digest, "greedy"].verifier_tokens == 0
