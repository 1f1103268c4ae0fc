"""Measures FlashEdge on a card beside unmodified vLLM. See first_light.sh.

The parts come in the order of their worth, and FOLDER/first_light.json is written after each:

- `doctor`, and `first start`: of the bundled pair, with no compiled code kept;
- `search` and `bundled search`: searches of PAIR and of the bundled pair, our stock loop on the
  same engines, and two `vllm serve` for the very requests of the same trees
  (`scripts.bench.engine.replayed_search`), with what speculation drew and kept. PAIR's also by a
  second daemon, whose generator has vLLM's second model runner and whose verifier graphs;
- `memory`: what each process holds of the card;
- `steps`: a decode step of the bundled generator, by `vllm serve` with each of vLLM's runners and
  by our plain completions (`scripts.bench.engine.decode_steps`);
- `later start`: of PAIR, beside two idle `vllm serve`, with compiled code kept.

FOLDER/trees keeps the searches' results, FOLDER/steps the steps of all engines. A part that fails
says why, and the next one goes on. The last line is JSON.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from flashedge.engine.platform import runs_on_cpu
from flashedge.files.problems import read_labelled
from scripts.bench.daemon import CLI, DATA, report
from scripts.bench.engine.decode_steps import (
    SERVERS,
    STEPS,
    complete_by,
    measure_rows,
    time_engines,
)
from scripts.bench.engine.replayed_search import Loops, Servers, measure
from scripts.bench.engine.served_pair import MODEL, ServedPair, connect, find_served_pair
from scripts.card.results import BUNDLED, KV_OPTION, Results, make_folder, parse_options

VERIFIER = "verifier"
RUNNERS = ("serve", "first runner")
"""The `vllm serve` whose steps are measured. Each further one makes all starts longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. The defaults are a card's."""

    pair: str
    problems: Path
    output: Path
    kv_bytes: int
    """KV memory of each of PAIR's engines, and of each `vllm serve` beside them."""
    rows: tuple[int, ...] = (1, 16, 64)
    tokens: tuple[int, int] = (16, 80)
    rounds: int = 2
    bundled_n: tuple[int, ...] = (16, 64)
    n: tuple[int, ...] = (64, 16)
    last_n: tuple[int, ...] = (256,)
    runs: Mapping[int, int] = field(default_factory=lambda: {16: 3, 64: 4, 256: 1})
    """How many searches, by n."""
    other: Mapping[str, Any] = field(
        default_factory=lambda: {"features": "second_runner=on,verifier_graphs=on"}
    )
    """Settings of the daemon beside ours."""

    @property
    def home(self) -> Path:
        """Of what the daemons keep between starts."""
        return self.output / "home"


REHEARSED: dict[str, Any] = {
    "rows": (1, 4),
    "tokens": (4, 12),
    "rounds": 1,
    "bundled_n": (4,),
    "n": (4,),
    "last_n": (),
    "runs": {4: 1},
    "other": {"features": "async_scheduling=on"},  # the second runner needs Triton
}


async def measure_all(plan: Plan, results: Results) -> None:
    async with results.part("doctor"):
        results.add("doctor", read_doctor())
    async with results.part("after the first start"), AsyncExitStack() as stack:
        await measure_pairs(plan, stack, results)


async def measure_pairs(plan: Plan, stack: AsyncExitStack, results: Results) -> None:
    bundled = find_served_pair(BUNDLED)
    ours = await start_ours(stack, bundled, plan, results, "first start")
    pair = find_served_pair(plan.pair, plan.kv_bytes)
    wanted = {name: bundled.build_generator(*SERVERS[name]) for name in RUNNERS}
    wanted |= {VERIFIER: bundled.build_verifier(), "pair's verifier": pair.build_verifier()}
    wanted["pair's generator"] = pair.build_generator()
    async with AsyncExitStack() as first:
        clients = {"bundled": ours}

        async def start_pair(name: str, **settings: Any) -> None:
            part = f"start beside vllm serve, {name}"
            async with results.part(part):
                clients[name] = await start_ours(
                    first, pair, plan, results, part, home=name, **settings
                )

        servers = (
            results.start_servers(
                stack, f"vllm serve, {name}", {name: server}, plan.output, clients
            )
            for name, server in wanted.items()
        )
        await asyncio.gather(start_pair("pair"), *servers)
        await start_pair("other", **plan.other)  # last: if memory is short, it alone fails

        async def measure_searches(
            part: str, n: int, ways: Mapping[str, str], *, of_pair: bool
        ) -> None:
            async with results.part(part):
                names = ("pair's generator", "pair's verifier") if of_pair else ("serve", VERIFIER)
                both_serve = all(name in clients for name in names)
                loops = Loops(
                    ours={way: clients[name] for way, name in ways.items()},
                    servers=Servers(*(clients[name] for name in names)) if both_serve else None,
                    trees=make_folder(plan.output / "trees" / (plan.pair if of_pair else BUNDLED)),
                )
                file = plan.problems if of_pair else DATA / "heldout.jsonl"
                problems = [problem.text for problem in read_labelled(file, 8)]
                rows, table = await measure(loops, problems, n, plan.runs[n])
                runs = [{way: asdict(run) for way, run in row.items()} for row in rows]
                results.add(part, {"ways": table, "runs": runs})

        both = {"flashedge": "pair", "baseline": "pair"}
        if "other" in clients:
            both |= {" ".join(plan.other): "other"}
        for n in plan.n:
            await measure_searches(f"search, n = {n}", n, both, of_pair=True)
        both = {"flashedge": "bundled", "baseline": "bundled"}
        for n in plan.bundled_n:
            await measure_searches(f"bundled search, n = {n}", n, both, of_pair=False)
        results.add("memory", read_memory())
        ways = {name: complete_by(clients[name], MODEL) for name in RUNNERS if name in clients}
        ways["completions"] = complete_by(ours, BUNDLED)
        async with results.part("steps"):
            steps = plan.output / STEPS
            table = await measure_rows(ways, plan.rows, plan.rounds, plan.tokens, steps)
            results.add("steps", table)
    part, off = f"later start, {plan.pair}", {"features": "speculation=off"}
    clients["pair"] = await start_ours(stack, pair, plan, results, part, home="pair", **off)
    for n in (*plan.n, *plan.last_n):
        part = f"search, n = {n}, no speculation"
        await measure_searches(part, n, {"no speculation": "pair"}, of_pair=True)


async def start_ours(
    stack: AsyncExitStack,
    pair: ServedPair,
    plan: Plan,
    results: Results,
    part: str,
    home: str = BUNDLED,
    **settings: Any,
) -> httpx.AsyncClient:
    """Start a daemon. Its seconds until it serves, and what it says of itself, become a part.

    home: of what it keeps between starts.
    """
    began = time.monotonic()
    folders = {f"{name}_dir": make_folder(plan.home / home / name) for name in ("state", "cache")}
    manager = pair.start_ours(tested=False, **folders, **settings)
    daemon = await asyncio.to_thread(manager.__enter__)
    stack.callback(manager.__exit__, None, None, None)
    seconds = round(time.monotonic() - began, 1)
    await asyncio.to_thread(daemon.wait_tested)
    done = daemon.run_cli("ps", "--json")
    results.add(part, {"seconds": seconds, "ps": json.loads(done.stdout or "null")})
    return await stack.enter_async_context(connect(daemon.url))


def read_doctor() -> Any:
    done = subprocess.run([*CLI, "doctor", "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def read_memory() -> list[str]:
    """The processes on the card and the MiB of each; on a CPU nothing."""
    if runs_on_cpu():
        return []
    query = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def parse_plan() -> Plan:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kv-bytes", **KV_OPTION)
    asked = parse_options(__doc__.splitlines()[0], "first-light", parser)
    return Plan(
        pair=asked.pair,
        problems=asked.problems,
        output=asked.output,
        kv_bytes=asked.kv_bytes,
        **(REHEARSED if asked.rehearse else {}),
    )


def main() -> None:
    plan = parse_plan()
    shutil.rmtree(plan.home, ignore_errors=True)  # else an earlier run's compiled code is kept
    results = Results(plan.output / "first_light.json", plan.pair)
    with time_engines(plan.output):
        asyncio.run(measure_all(plan, results))
    report(passed=not results.failed, failed=results.failed, output=str(plan.output))
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
