"""Paths that outgrow the verifier's context: they score 0, and the others are judged as ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores
from flashedge.errors import ContextOverflow, PathOverflow
from flashedge.runtime.drive.engines import Engines
from flashedge.types import STRATEGIES
from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.runtime_rig import BEAM, assert_nothing_left, drive, sim_engines


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


class ShortVerifier(EngineProxy[Any]):
    """Its context holds `steps` steps of a path."""

    steps = 2
    kind: type[ContextOverflow] = PathOverflow

    async def score(self, request: ScoreRequest) -> StepScores:
        if len(request.steps) > self.steps:
            raise self.kind("the path is too long")
        found: StepScores = await self._engine.score(request)
        return found


def shorten(engines: Engines) -> tuple[Engines, ShortVerifier]:
    verifier: Any = ShortVerifier(engines.verifier)
    return replace(engines, verifier=verifier), verifier


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
async def test_the_search_goes_on(strategy: str) -> None:
    engines = sim_engines()
    short, _ = shorten(engines)
    spec = replace(BEAM, strategy=strategy, n=1 if strategy == "probed_cot" else 8)
    tree = (await drive(short, spec)).outcome.tree
    if strategy in ("self_consistency", "probed_cot"):
        return  # they need no verifier
    judged = [node for node in tree.nodes.values() if node.scores]
    deep = [node for node in judged if len(tree.path_steps(node.id)) > ShortVerifier.steps]
    assert deep
    assert all(set(node.scores or ()) == {0.0} for node in deep)
    if strategy != "best_of_n":  # whole answers are all deep
        assert any(score > 0 for node in judged for score in node.scores or ())
    await assert_nothing_left(engines)


async def test_speculation_does_not_change_what_overflows() -> None:
    outcomes = []
    for lookahead in (True, False):
        short, _ = shorten(sim_engines().switch(lookahead=lookahead))
        outcomes.append((await drive(short, BEAM)).outcome)
    assert outcomes[0] == outcomes[1]


async def test_a_problem_that_leaves_no_room_ends_the_run() -> None:
    engines = sim_engines()
    short, verifier = shorten(engines)
    verifier.kind = ContextOverflow
    with pytest.raises(ContextOverflow):
        await drive(short, BEAM)
    await assert_nothing_left(engines)
