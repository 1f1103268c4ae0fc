"""How does FlashEdge compare with unmodified vLLM? The rung below the ladder.

    python -m scripts.card.serve_rung --pair PAIR --problems FILE [--n 16] [--limit 4] [--rounds 2]

The stock search loop runs the same searches on two `vllm serve` processes with vLLM's defaults
(`served.py`), then FlashEdge's daemon runs them with its defaults, in turn (A B A B). FlashEdge's
own `--baseline` shares its engines' settings (synchronous scheduling, the first model runner), so
it can't tell what these cost; this can. The two sample differently: trees differ, and accuracy is
compared over all problems. A problem's figure is the median of its rounds, a gain the median of the
problems' ratios with its 95 % bootstrap interval. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.sync_client import Client
from flashedge.config import Config, load_config
from flashedge.engine.vllm import compat
from flashedge.events import Event, NodesMarked
from flashedge.files.problems import LabelledProblem, read_labelled
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.spec import RunSpec
from flashedge.search.tree import NodeStatus
from flashedge.statistics import bootstrap, mean
from flashedge.types import Message, NodeId, Problem
from scripts.bench.daemon import find_free_port, report, start_daemon
from scripts.bench.flashtts.kv_rig import drive_search
from scripts.card.served import ServedGenerator, ServedVerifier, build_command, serve
from scripts.lab.benchmark.goodput import compute_goodput
from scripts.lab.benchmark.live_run import RunKey, time_run

SHARE = 0.44
"""Of the card's memory, for each server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search."""

    seconds: float
    goodput: float
    right: bool


async def measure(asked: argparse.Namespace) -> None:
    config = load_config({"pair": asked.pair})
    pair = find_pair(config.pair, config)
    problems = read_labelled(asked.problems, asked.limit)
    served: list[list[SearchRun]] = [[] for _ in problems]
    ours: list[list[SearchRun]] = [[] for _ in problems]
    grader = MathGrader()
    try:
        for _ in range(asked.rounds):
            await run_served(pair, config, problems, asked.n, grader, served)
            await run_flashedge(pair, problems, asked.n, grader, ours)
    finally:
        await grader.close()
    report(
        pair=pair.name,
        n=asked.n,
        problems=len(problems),
        rounds=asked.rounds,
        vllm_serve=summarize(served),
        flashedge=summarize(ours),
        goodput_gain=compare(ours, served, "goodput"),
        speedup=compare(served, ours, "seconds"),
    )


async def run_served(
    pair: Pair,
    config: Config,
    problems: Sequence[LabelledProblem],
    n: int,
    grader: MathGrader,
    found: list[list[SearchRun]],
) -> None:
    """Start both servers, solve each problem once, and stop them."""
    async with start_pair(pair, config, grader) as engines:
        warm_up = build_spec(pair, problems[0], n, seed=999)
        await drive_search(engines, warm_up)
        for problem, runs in zip(problems, found, strict=True):
            began, done_s = time.monotonic(), dict[NodeId, float]()

            def note(
                event: Event, began: float = began, done_s: dict[NodeId, float] = done_s
            ) -> None:
                if isinstance(event, NodesMarked) and event.status == NodeStatus.COMPLETE:
                    done_s.update(dict.fromkeys(event.nodes, time.monotonic() - began))

            spec = build_spec(pair, problem, n, seed=problem.index)
            outcome, *_ = await drive_search(engines, spec, note)
            lengths = [outcome.tree[node].path_tokens for node in done_s]
            answer = outcome.finish.answer
            runs.append(
                SearchRun(
                    seconds=time.monotonic() - began,
                    goodput=compute_goodput(lengths, done_s.values()),
                    right=answer is not None and await grader.equal(answer, problem.answer),
                )
            )


@asynccontextmanager
async def start_pair(pair: Pair, config: Config, grader: MathGrader) -> AsyncIterator[Engines]:
    compat.prepare_environment()
    from flashedge.engine.vllm.prm import AnswerFormat, find_family

    generator, verifier = (resolve_model(spec, config) for spec in (pair.generator, pair.verifier))
    prm = find_family(pair.verifier.family)(verifier, pair.verifier.options)
    if isinstance(prm, AnswerFormat):
        raise SystemExit(f"beam search needs step scores; {pair.name}'s verifier judges answers")
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flashedge-serve-")))
        clients = []
        for name, spec, folder, extra in (
            ("generator", pair.generator, generator, {}),
            ("verifier", pair.verifier, verifier, prm.engine_extra),
        ):
            port = find_free_port()
            command = build_command(spec, folder, port, SHARE, extra)
            clients.append(await stack.enter_async_context(serve(command, port, logs / name)))
        yield Engines(
            generator=ServedGenerator(clients[0], pair.generator, generator),
            verifier=ServedVerifier(clients[1], pair.verifier, prm),
            grader=grader,
            optimizations=Optimizations.none(),
        )


def build_spec(pair: Pair, problem: LabelledProblem, n: int, seed: int) -> RunSpec:
    asked = Message(role="user", content=problem.text)
    system = pair.system_prompt and Message(role="system", content=pair.system_prompt)
    return RunSpec(
        problem=Problem(messages=(system, asked) if system else (asked,)),
        pair=pair.name,
        n=n,
        seed=seed,
        sampling=pair.sampling,
        max_step_tokens=pair.max_step_tokens,
        max_path_tokens=pair.max_path_tokens,
    )


async def run_flashedge(
    pair: Pair,
    problems: Sequence[LabelledProblem],
    n: int,
    grader: MathGrader,
    found: list[list[SearchRun]],
) -> None:
    """Start a daemon with the default optimizations, and solve each problem once."""
    key = RunKey(rung="defaults", kv="plan", n=n, problem=0, round=0)
    with start_daemon(pair=pair.name) as daemon, Client(daemon.url) as client:
        warm_up = {"problem": problems[0].text, "n": n, "seed": 999}
        await asyncio.to_thread(time_run, client, warm_up, key)
        for problem, runs in zip(problems, found, strict=True):
            body = {"problem": problem.text, "n": n, "seed": problem.index}
            run = await asyncio.to_thread(time_run, client, body, key)
            runs.append(
                SearchRun(
                    seconds=run.seconds,
                    goodput=run.goodput,
                    right=run.answer is not None and await grader.equal(run.answer, problem.answer),
                )
            )


def summarize(found: Sequence[Sequence[SearchRun]]) -> dict[str, float]:
    return {
        "seconds": round(median(median(r.seconds for r in runs) for runs in found), 3),
        "goodput": round(median(median(r.goodput for r in runs) for runs in found), 2),
        "right": round(mean([mean([float(r.right) for r in runs]) for runs in found]), 3),
    }


def compare(
    above: Sequence[Sequence[SearchRun]], below: Sequence[Sequence[SearchRun]], name: str
) -> Mapping[str, Any]:
    ratios = [
        median(getattr(r, name) for r in over) / median(getattr(r, name) for r in under)
        for over, under in zip(above, below, strict=True)
    ]
    low, high = bootstrap(ratios, median)
    return {"median": round(median(ratios), 3), "interval": [round(low, 3), round(high, 3)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default=None)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
