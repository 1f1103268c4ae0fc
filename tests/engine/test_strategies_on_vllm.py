"""One small case of every strategy on the bundled pair, and probes that leave their chain alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashedge import events
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.certainty.measures import ENTROPY
from flashedge.engine.vllm.pair import VllmPair
from flashedge.events import Event
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import build_search
from flashedge.search.tree import NodeStatus
from flashedge.types import STRATEGIES, Problem, Sampling
from tests.support.small_searches import PROBES, spec_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def solved(pair: VllmPair, spec: Request) -> tuple[Outcome, list[Event]]:
    told: list[Event] = []
    grader = MathGrader()
    engines = Engines(generator=pair.generator, verifier=pair.verifier, grader=grader)
    prompt = pair.generator.codec.encode_chat(spec.problem.messages)
    try:
        driver = Driver(build_search(spec), spec, prompt, engines, told.append)
        return await driver.run(), told
    finally:
        await grader.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_strategy_answers(pair: VllmPair, problem: Problem, strategy: str) -> None:
    # hot, since MCTS completes fewer paths where all of them say the same
    spec = spec_of(problem, strategy, early_exit=None, sampling=Sampling(temperature=1.5))
    outcome, _ = await solved(pair, spec)
    tree = outcome.tree
    done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    assert len(done) >= spec.n
    assert outcome.finish.choice in {n.id for n in done}
    assert outcome.history
    assert (await solved(pair, spec))[0] == outcome


async def test_certainty_stops_a_run(pair: VllmPair, problem: Problem) -> None:
    exits = ExitOptions(policy="static", detect=2, thresholds={ENTROPY: 0.0})
    spec = spec_of(problem, "self_consistency", n=8, early_exit=exits)
    outcome, told = await solved(pair, spec)
    assert outcome.cut_by == "certainty"
    assert outcome.history[-1].progress == 2
    (end,) = [e for e in told if isinstance(e, events.EarlyExit)]
    assert end.tokens == outcome.tree.committed_tokens
    whole, _ = await solved(pair, replace(spec, early_exit=None))
    for node, at in outcome.tree.nodes.items():
        assert at.segment == whole.tree[node].segment


@pytest.mark.parametrize("beside", [True, False])
async def test_probes_never_touch_the_chain(pair: VllmPair, problem: Problem, beside: bool) -> None:
    """The chain's token ids with probing on are those with probing off, bit for bit."""
    for seed in range(4):
        options = {**PROBES, "beside": beside}
        spec = spec_of(problem, "probed_cot", seed=seed, options=options, early_exit=None)
        probed, told = await solved(pair, spec)
        plain, _ = await solved(pair, replace(spec, options={"probe_tokens": 0}))
        ids = [run.tree.path_token_ids(run.finish.choice) for run in (probed, plain)]
        assert ids[0] == ids[1]
        assert [e for e in told if isinstance(e, events.Probed)]


async def test_probes_end_a_chain(pair: VllmPair, problem: Problem) -> None:
    """With a window of 1 every answered probe does."""
    options = {**PROBES, "window": 1}
    outcome, told = await solved(pair, spec_of(problem, "probed_cot", options=options))
    probes = [e for e in told if isinstance(e, events.Probed)]
    assert outcome.cut_by == "certainty"
    assert outcome.finish.answer is not None
    assert f"{outcome.finish.answer}}}" in probes[-1].text
