"""Small searches of the bundled pair on one of vLLM's model runners, with their trees as JSON.

    python -m tests.support.small_searches OUTPUT --problems 1 --strategies beam
        [--second [--drafts]] [--sync]

The second runner needs PYTHONPATH=tests/support/interpreted and TRITON_INTERPRET=1 on a CPU. A step
takes it some 0.2 s there. On both runners the generator schedules a step ahead, and drafts.
"""

import argparse
import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.strategies import find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem, Sampling
from tests.support.paths import DATA
from tests.support.runtime_rig import driver_of

PROBES = {"probe_tokens": 8, "suffix": "The answer is \\boxed{", "max_probe_tokens": 8}


def spec_of(problem: Problem, strategy: str, **fields: Any) -> Request:
    """The fields take the place of the strategy's defaults."""
    told: dict[str, Any] = {"n": 4, "branching": 2, "max_path_tokens": 192, "seed": 3}
    told |= {"strategy": strategy, **find_defaults(strategy), **fields}
    if strategy == "probed_cot":
        told.setdefault("options", PROBES)
    return Request(problem=problem, pair="bundled", **told)


def list_specs(problems: int, strategies: list[str], n: int = 4) -> dict[str, Request]:
    lines = (DATA / "heldout.jsonl").read_text().splitlines()[:problems]
    found: dict[str, Request] = {}
    for number, line in enumerate(lines):
        cuts: dict[str, Any] = {"top_k": 20, "top_p": 0.9} if number % 2 else {}
        for strategy in strategies:
            found[f"{strategy} {number}"] = spec_of(
                Problem.from_text(json.loads(line)["problem"]),
                strategy,
                n=n,
                seed=number,
                max_path_tokens=160,
                sampling=Sampling(temperature=1.2, **cuts),
                early_exit=None,
            )
    return found


async def run_searches(specs: dict[str, Request], **features: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        asked = {"features": {"async_scheduling": True, **features}}
        config = load_config(asked, environ={"FLASHEDGE_HOME": home})
        pair, grader = VllmPair(find_pair("bundled", config), config), MathGrader()
        await pair.start()
        try:
            engines = Engines(generator=pair.generator, verifier=pair.verifier, grader=grader)
            trees, logprobs = {}, {}
            for name, spec in specs.items():
                own = replace(engines, program=name)
                outcome = await driver_of(own, spec, lambda event: None).run()
                trees[name] = [describe_node(node) for node in outcome.tree.nodes.values()]
                segments = [node.segment for node in outcome.tree.nodes.values() if node.segment]
                logprobs[name] = [list(segment.logprobs) for segment in segments]
                print(name, len(trees[name]), flush=True)
            call = pair.generator.process.call
            tokens = (await call("view"))["token_drafts"]
            drafts = await call("get_counters")
            return {"trees": trees, "logprobs": logprobs, "drafts": drafts, "token_drafts": tokens}
        finally:
            await grader.close()
            await pair.stop()


def describe_node(node: Any) -> list[Any]:
    """All that has to be equal of a node: not its log-probabilities, which the second runner
    computes by another kernel."""
    segment = node.segment and [node.segment.token_ids, str(node.segment.finish)]
    return [node.id, node.parent, node.seed, str(node.status), segment, node.scores, node.answer]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--problems", type=int, default=1)
    parser.add_argument("--strategies", nargs="+", default=["beam"])
    parser.add_argument("-n", type=int, default=4)
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--drafts", action="store_true", help="draft tokens on its device")
    parser.add_argument("--sync", action="store_true", help="schedule no step ahead")
    asked = parser.parse_args()
    specs = list_specs(asked.problems, asked.strategies, asked.n)
    features = {"second_runner": asked.second, "card_drafts": asked.drafts}
    found = asyncio.run(run_searches(specs, **features, async_scheduling=not asked.sync))
    asked.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
