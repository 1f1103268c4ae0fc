"""A run that continues an earlier one: the same tree as in one go, and only the new work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import Conflict, NotFound, RequestError
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.request.validation import Request
from tests.support.runtime_rig import BEAM, drive, driver_of, folded, nodes_of, sim_engines
from tests.support.service_rig import Rig
from tests.unit.runtime.drive.test_strategies import BY_VOTE, every_strategy, spec_of

NAME = "run-" + "ab-0" * 4


def counted(engines: Any) -> dict[str, int]:
    """Requests that the engines were asked, by kind, from now on."""
    asked = {"extend": 0, "score": 0}
    for engine, name in ((engines.generator, "extend"), (engines.verifier, "score")):
        method = getattr(engine, name)

        def count(request: Any, name: str = name, method: Any = method) -> Any:
            asked[name] += 1
            return method(request)

        setattr(engine, name, count)
    return asked


@every_strategy
async def test_a_continued_run_builds_the_tree_of_one_and_repeats_no_work(strategy: str) -> None:
    spec, engines = spec_of(strategy), sim_engines()
    asked = counted(engines)
    whole = await drive(engines, spec)
    needed = dict(asked)
    for part in (1, whole.outcome.tree.committed_tokens // 2):
        engines = sim_engines()
        asked = counted(engines)
        short = await drive(engines, replace(spec, token_budget=part))
        assert folded(short.events) == nodes_of(short.outcome.tree, spec)
        first = dict(asked)
        told: list[Any] = []
        driver = driver_of(engines, spec, told.append, EarlierRun.from_events(short.events))
        outcome = await driver.run()
        assert outcome == whole.outcome
        assert driver.probe_tokens == sum(p.tokens for p in told if type(p).__name__ == "Probed")
        assert {k: asked[k] - needed[k] for k in asked} == {"extend": 0, "score": 0}
        assert first["extend"] < needed["extend"] or short.outcome.cut_by is None


@pytest.mark.parametrize("budget", [60, None])
@pytest.mark.parametrize("spec", [BY_VOTE, spec_of("mcts", n=8, options={"parallel": 4})])
async def test_a_run_that_drops_work_goes_on_alike(spec: Request, budget: int | None) -> None:
    whole = await drive(sim_engines(), spec)
    short = await drive(sim_engines(), replace(spec, token_budget=budget))
    if budget and spec.strategy == "mcts":
        assert short.outcome.cut_by == "budget"
    earlier = EarlierRun.from_events(short.events)
    driver = driver_of(sim_engines(), spec, lambda event: None, earlier)
    assert await driver.run() == whole.outcome


async def test_a_named_run_is_created_once(rig: Rig) -> None:
    first = rig.service.submit(BEAM, run_id=NAME)
    assert first.id == NAME
    assert rig.service.submit(BEAM, run_id=NAME) is first
    with pytest.raises(Conflict, match="another request"):
        rig.service.submit(replace(BEAM, seed=5), run_id=NAME)
    result = await first.result()
    assert await rig.service.submit(BEAM, run_id=NAME).result() == result
    assert [run.id for run in rig.store.list()] == [NAME]


@pytest.mark.parametrize(
    "name", ["", "mine", "run-1", "run-" + "A" * 12, "run-" + "a" * 11, "run-" + "a/" * 8]
)
async def test_a_malformed_name_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(RequestError, match="it must be run-"):
        rig.service.submit(BEAM, run_id=name)
    assert rig.store.list() == []


async def test_the_service_continues_a_finished_run(rig: Rig) -> None:
    whole = await rig.service.submit(BEAM).result()
    cut = await rig.service.submit(replace(BEAM, token_budget=60)).result()
    assert cut["cut_by"] == "budget"
    longer = rig.service.submit(replace(BEAM, token_budget=10_000), continues=cut["id"])
    with pytest.raises(Conflict, match="not finished"):
        rig.service.submit(BEAM, continues=longer.id)
    result = await longer.result()
    for same in ("answer", "text", "votes", "tree", "completions", "cut_by", "certainty"):
        assert result[same] == whole[same]
    assert result["usage"]["tree_tokens"] == whole["usage"]["tree_tokens"]
    assert result["usage"]["verifier_tokens"] < whole["usage"]["verifier_tokens"]
    with pytest.raises(Conflict, match="another request"):
        rig.service.submit(replace(BEAM, n=9), continues=cut["id"])
    with pytest.raises(NotFound):
        rig.service.submit(BEAM, continues="run-none")
