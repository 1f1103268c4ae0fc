"""A boosted run's log builds the same tree again, without engines and with other ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from flashedge.answers import grouping
from flashedge.answers.grouping import WordGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.errors import Conflict
from flashedge.events import RolloutsAllowed, RunFinished, RunStarted, StepCompleted
from flashedge.runtime.drive import event_emitter
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.rollouts.replay import RunLog, build_replay_search, replay
from flashedge.search.tree import Tree
from scripts.lab.sim.clock import run_virtual
from tests.support.boost_rig import EXITS, SPEC, run_boosted
from tests.support.runtime_rig import CONFIG, prompt_of, sim_engines


def replay_log(log: RunLog) -> str | None:
    async def scenario() -> str | None:
        grader = MathGrader()
        found = await replay(log, grader, WordGroups())
        await grader.close()
        return found.find_difference(log)

    return asyncio.run(scenario())


def differs(log: RunLog) -> bool:
    try:
        return replay_log(log) is not None
    except Conflict:  # the search asks for what the log lacks
        return True


@pytest.mark.parametrize("options", [SPEC.options, EXITS])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_replays_to_the_same_tree(options: dict[str, Any], seed: int) -> None:
    spec = replace(SPEC, options=options, seed=seed)
    ran = run_boosted(spec, seed)
    log = RunLog.from_events("run-a", ran.events)
    assert len({rollouts for _, rollouts in log.script}) > 1, "nothing was boosted"
    assert replay_log(log) is None


def test_a_log_without_boxes_replays_to_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "find_named_answer", grouping.extract_answer)
    monkeypatch.setattr(grouping, "extract_answer", lambda text: None)
    monkeypatch.setattr(event_emitter, "extract_answer", lambda text: None)
    log = RunLog.from_events("run-a", run_boosted(SPEC, 0).events)
    assert log.result["unboxed"]
    assert replay_log(log) is None


def test_boosted_runs_with_other_clocks_build_other_trees() -> None:
    """Else the test above would show nothing."""
    trees = [run_boosted(SPEC, seed).tree for seed in range(3)]
    assert len({str(tree.nodes) for tree in trees}) > 1


def test_slower_engines_build_the_tree_of_the_log() -> None:
    ran = run_boosted(SPEC, 1)
    log = RunLog.from_events("run-a", ran.events)

    async def scenario() -> Tree:
        device = replace(CONFIG.device, overhead_s=0.05, sequence_s=0.003)
        engines = sim_engines(config=replace(CONFIG, device=device, max_num_seqs=3))
        search = build_replay_search(log.spec, log.script)
        prompt = prompt_of(engines, log.spec)
        driver = Driver(search, log.spec, prompt, engines, lambda event: None)
        return (await driver.run()).tree

    assert run_virtual(scenario()) == ran.tree


def test_a_changed_log_is_found() -> None:
    ran = run_boosted(SPEC, 2)
    log = RunLog.from_events("run-a", ran.events)
    turns = [at for at, (turn, _) in enumerate(log.script) if turn]
    lost = replace(log, script=tuple(s for at, s in enumerate(log.script) if at != turns[0]))
    assert differs(lost)
    nodes = [dict(node) for node in log.result["tree"]["nodes"]]
    nodes[3]["token_ids"] = [1, 2, 3]
    other = replace(log, result={**log.result, "tree": {"nodes": nodes}})
    assert "node 3: token_ids" in str(replay_log(other))


def test_what_can_t_be_replayed_says_why() -> None:
    ran = run_boosted(SPEC, 0)
    start, *rest = ran.events
    assert isinstance(start, RunStarted)
    serial = RunStarted(config=replace(SPEC, options={}).to_json(), queue_s=0.0)
    cut = RunFinished(result={"cut_by": "deadline"})
    for events, words in (
        ([serial, *rest], "was not boosted"),
        ([start], "has not finished"),
        ([start, cut], "deadline"),
    ):
        with pytest.raises(Conflict, match=words):
            RunLog.from_events("run-a", events)
    short = [e for e in ran.events if not isinstance(e, StepCompleted) or e.node < 9]
    with pytest.raises(Conflict, match="lacks results"):
        replay_log(RunLog.from_events("run-a", short))
    assert any(isinstance(event, RolloutsAllowed) for event in rest)
