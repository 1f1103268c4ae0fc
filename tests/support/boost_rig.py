"""Runs on simulated engines whose allowances change at random times, with all their events."""

import asyncio
from dataclasses import dataclass, replace
from random import Random

from flashedge.events import Event, RunFinished, RunStarted
from flashedge.runtime.records.result import build_result
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import Tree
from flashedge.types import Timing, Usage
from scripts.lab.sim.clock import run_virtual
from tests.support.runtime_rig import BEAM, driver_of, folded, nodes_of, sim_engines

MCTS = replace(BEAM, strategy="mcts", n=20, branching=3, aggregate="prod", selection="best")
SPEC = replace(MCTS, options={"boost": True})
EXITS = {"boost": True, "positive_exit": True, "accept": 0.7, "cut_rollouts": True, "futile": 0.02}


@dataclass(frozen=True)
class Ran:
    events: list[Event]
    tree: Tree


def run_boosted(spec: Request, seed: int) -> Ran:
    """Drive a run whose allowance changes at random times, and store its events."""

    async def scenario() -> Ran:
        engines = sim_engines()
        events: list[Event] = [RunStarted(config=spec.to_json(), queue_s=0.0)]
        driver = driver_of(engines, spec, events.append)
        draw = Random(seed)

        async def change() -> None:
            while True:
                await asyncio.sleep(draw.expovariate(100.0))
                driver.allow(draw.randint(1, 6), 6)

        changes = asyncio.create_task(change())
        outcome = await driver.run()
        changes.cancel()
        assert folded(events[1:]) == nodes_of(outcome.tree, spec)
        result = build_result("run-a", Plan(request=spec), outcome, Usage(), Timing())
        events.append(RunFinished(result=result))
        return Ran(events=events, tree=outcome.tree)

    return run_virtual(scenario())
