"""One load of searches on a daemon with real engines."""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import psutil

from flashedge import events
from flashedge.client.async_client import AsyncClient
from flashedge.config import load_config
from flashedge.daemon import control
from scripts.bench.daemon import Daemon
from scripts.bench.mcts.forgetful_daemon import ROUTE
from scripts.bench.mcts.load_record import LoadRecord, SearchRecord
from scripts.bench.mcts.variants import BRANCHING, VARIANTS
from scripts.lab.benchmark.live import grade_pairs
from scripts.lab.runs import solve


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A problem and when it arrives."""

    number: int
    at_s: float
    seed: int


def build_body(variant: str, row: Mapping[str, str], seed: int, n: int) -> dict[str, Any]:
    """The request of a search."""
    chosen = VARIANTS[variant]
    body = {"problem": row["problem"], "seed": seed, "branching": BRANCHING}
    if chosen.strategy == "beam":
        return {**body, "strategy": "beam", "n": 8}
    usual = {"strategy": "mcts", "n": n, "aggregate": "prod", "selection": "best"}
    return {**body, **usual, "options": dict(chosen.options)}


async def _serve(client: AsyncClient, body: Mapping[str, Any], at: Arrival) -> SearchRecord:
    """Run one search to its end. Its answer's place says whether it is right: not yet graded."""
    now = asyncio.get_running_loop().time
    arrived_s, started_s, boosts = now(), now(), 0

    def watch(event: events.Event) -> None:
        nonlocal started_s, boosts
        match event:
            case events.RunStarted():
                started_s = now()
            case events.RolloutsAllowed(rollouts=rollouts):
                boosts += rollouts > 1

    result = await solve(client, body, watch)
    latency_s = now() - arrived_s
    usage = result["usage"]
    return SearchRecord(
        problem=at.number,
        arrived_s=at.at_s,
        wait_s=started_s - arrived_s,
        latency_s=latency_s,
        tokens=usage["tree_tokens"] + usage["cancelled_tokens"],
        right=False,
        answer=result["answer"],
        cut_by=result["cut_by"],
        unlikely=result["unlikely"],
        rollouts=len(result["completions"]),
        boosts=boosts,
        cancelled_tokens=usage["cancelled_tokens"],
    )


async def serve_load(
    daemon: Daemon,
    rows: Sequence[Mapping[str, str]],
    variant: str,
    n: int,
    arrivals: Sequence[Arrival],
) -> LoadRecord:
    """Let the engines forget, then send the searches at their times and await all. Their answers
    are not graded."""
    async with httpx.AsyncClient(timeout=60) as plain:
        (await plain.post(daemon.url + ROUTE)).raise_for_status()
    config = load_config(environ=daemon.env)
    loop = asyncio.get_running_loop()
    name = f"load {secrets.token_hex(4)}"  # a client has no earlier texts to draft from
    async with control.connect_async(config, name=name, max_streams=2 * len(arrivals)) as client:
        before, cpu_s, began_s = await client.status(), _sum_cpu_s(daemon.pid), loop.time()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for at in arrivals:
                await asyncio.sleep(max(0.0, began_s + at.at_s - loop.time()))
                body = build_body(variant, rows[at.number], at.seed, n)
                tasks.append(group.create_task(_serve(client, body, at)))
        makespan_s = loop.time() - began_s
        after, cpu_s = await client.status(), _sum_cpu_s(daemon.pid) - cpu_s
    opened, ran = (
        after["scheduling"][name] - before["scheduling"][name]
        for name in ("boost_open_s", "boost_running_s")
    )
    return LoadRecord(
        searches=tuple(task.result() for task in tasks),
        makespan_s=makespan_s,
        busy_share=cpu_s / makespan_s / len(os.sched_getaffinity(daemon.pid)),
        boosted_share=opened / ran if ran else 0.0,
        missed_share=0.0,
        preemptions=_count_preemptions(after) - _count_preemptions(before),
    )


async def grade(record: LoadRecord, rows: Sequence[Mapping[str, str]]) -> LoadRecord:
    """The record with its answers graded."""
    right = {one.problem: rows[one.problem]["answer"] for one in record.searches}
    answers = ((one.problem, one.answer) for one in record.searches if one.answer)
    graded = await grade_pairs(answers, right)
    return replace(
        record,
        searches=tuple(
            replace(one, right=bool(one.answer) and graded[one.problem, one.answer])
            for one in record.searches
        ),
    )


def _sum_cpu_s(pid: int) -> float:
    """Processor seconds of a process and of those below it that live."""
    daemon = psutil.Process(pid)
    times = [p.cpu_times() for p in (daemon, *daemon.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def _count_preemptions(status: Mapping[str, Any]) -> int:
    return sum((one["view"] or {}).get("preemptions", 0) for one in status["engines"].values())
