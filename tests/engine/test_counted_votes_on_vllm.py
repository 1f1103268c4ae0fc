"""Votes that are counted after every path, on the real engines: the same tree however they are
busy, and nothing left of the paths that are cancelled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashedge.engine.vllm.pair import VllmPair
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.request import Request
from flashedge.search.tree import ROOT, NodeStatus
from tests.engine.test_driver_on_vllm import BEST, EASY, HARD, assert_idle
from tests.support.runtime_rig import drive, folded, nodes_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

BY_SCORE = replace(BEST, early_exit=ExitOptions())
BY_VOTE = replace(BY_SCORE, strategy="self_consistency", selection="majority")


@pytest.mark.parametrize("spec", [BY_VOTE, BY_SCORE], ids=lambda spec: spec.strategy)
async def test_the_tree_does_not_depend_on_the_load(
    pair: VllmPair, engines: Engines, spec: Request
) -> None:
    """Alone, all at once, and by a stock loop."""
    specs = [replace(spec, problem=problem) for problem in (*EASY[:4], *HARD[:4])]
    alone = [await drive(engines, each) for each in specs]
    together = await asyncio.gather(*(drive(engines, each) for each in specs))
    stock = replace(engines, generator=pair.stock_generator, verifier=pair.stock_verifier)
    cancelled = begun = 0
    for one, other, each in zip(alone, together, specs, strict=True):
        assert other.outcome == one.outcome
        tree = one.outcome.tree
        assert folded(one.events) == nodes_of(tree, each)
        statuses = [node.status for node in tree.children(ROOT)]
        cancelled += statuses.count(NodeStatus.CANCELLED)
        begun += len(statuses)
    assert (await drive(stock, specs[0])).outcome == alone[0].outcome
    assert 0 < cancelled < begun < spec.n * len(specs)
    await assert_idle(engines)
