"""Boosted runs: a log builds the same tree again, and what the service records."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from flashedge.answers import grouping
from flashedge.answers.extraction import extract_open_answer
from flashedge.answers.grouping import WordGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.base import ExtendRequest
from flashedge.errors import Conflict, NotFound, RequestError
from flashedge.events import RolloutsAllowed, RunFinished, RunStarted, StepCompleted
from flashedge.runtime.drive import event_emitter
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.request.validation import Request
from flashedge.runtime.rollouts.boosting import DaemonTime
from flashedge.runtime.rollouts.replay import (
    RunLog,
    _group,
    build_replay_search,
    find_difference,
    replay,
)
from flashedge.search.tree import Tree
from flashedge.types import NodeId
from scripts.lab.sim.clock import run_virtual
from tests.support.boost_rig import EXITS, SPEC, run_boosted
from tests.support.rollout_rig import make_cost
from tests.support.runtime_rig import (
    BEAM,
    CONFIG,
    drive,
    driver_of,
    prompt_of,
    record_requests,
    sim_engines,
)
from tests.support.service_rig import Rig, Serve, log_of
from tests.unit.runtime.drive.test_strategies import BY_VOTE, every_strategy, spec_of


def log_of_boosted(spec: Request, seed: int) -> RunLog:
    return RunLog.from_events("run-a", run_boosted(spec, seed).events)


async def replay_log(log: RunLog) -> str | None:
    grader = MathGrader()
    found = await replay(log, grader, WordGroups())
    await grader.close()
    return find_difference(log, *found)


def differs(log: RunLog) -> bool:
    try:
        return asyncio.run(replay_log(log)) is not None
    except Conflict:  # the search asks for what the log lacks
        return True


@pytest.mark.parametrize("options", [SPEC.options, EXITS])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_replays_to_the_same_tree(options: dict[str, Any], seed: int) -> None:
    log = log_of_boosted(replace(SPEC, options=options, seed=seed), seed)
    assert len({rollouts for _, rollouts in log.script}) > 1, "nothing was boosted"
    assert asyncio.run(replay_log(log)) is None


def test_a_log_without_boxes_replays_to_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "find_named_answer", grouping.extract_answer)
    monkeypatch.setattr(grouping, "extract_answer", lambda text: None)
    monkeypatch.setattr(event_emitter, "extract_answer", lambda text: None)
    log = log_of_boosted(SPEC, 0)
    assert log.result["unboxed"]
    assert asyncio.run(replay_log(log)) is None


def test_answers_are_grouped_as_in_the_run() -> None:
    """By their steps behind the thinking, and without the prose before a call."""
    log, node, call = log_of_boosted(SPEC, 0), NodeId(1), '{"a":1}'
    tag = {"structural_tag": json.dumps({"structures": [{"begin": "<call>"}]})}
    cases: tuple[tuple[str, dict[str, Any], str, str | None], ...] = (
        ("text", {}, "It is 3.\n\nSo 4.", extract_open_answer(["It is 3.\n\n", "So 4."])),
        ("json", {"guidance": tag}, f"First: <call>{call}", f"<call>{call}"),
    )
    for answers, fields, text, expected in cases:
        spec = replace(SPEC, answers=answers, **fields)
        told = replace(log, spec=spec, answer_texts={node: text})
        found = asyncio.run(_group(told, Tree(), (node,), MathGrader(), WordGroups()))
        assert found.answers == {node: expected}


def test_slower_engines_build_the_tree_of_the_log() -> None:
    """With the allowances at their turns, all is generated and scored again, at other times."""
    ran = run_boosted(SPEC, 1)
    log = RunLog.from_events("run-a", ran.events)

    async def drive_slowly() -> Tree:
        device = replace(CONFIG.device, overhead_s=0.05, sequence_s=0.003)
        engines = sim_engines(config=replace(CONFIG, device=device, max_num_seqs=3))
        search, prompt = build_replay_search(log.spec, log.script), prompt_of(engines, log.spec)
        driver = Driver(search, log.spec, prompt, engines, lambda event: None)
        return (await driver.run()).tree

    assert run_virtual(drive_slowly()) == ran.tree
    assert len({str(run_boosted(SPEC, seed).tree.nodes) for seed in range(3)}) > 1


def test_a_changed_log_is_found() -> None:
    log = log_of_boosted(SPEC, 2)
    turns = [at for at, (turn, _) in enumerate(log.script) if turn]
    lost = replace(log, script=tuple(s for at, s in enumerate(log.script) if at != turns[0]))
    assert differs(lost)
    nodes = [dict(node) for node in log.result["tree"]["nodes"]]
    nodes[3]["token_ids"] = [1, 2, 3]
    other = replace(log, result={**log.result, "tree": {"nodes": nodes}})
    assert "node 3: token_ids" in str(asyncio.run(replay_log(other)))


def test_what_can_t_be_replayed_says_why() -> None:
    ran = run_boosted(SPEC, 0)
    start, *rest = ran.events
    serial = RunStarted(config=replace(SPEC, options={}).to_json(), queue_s=0.0)
    cut = [start, RunFinished(result={"cut_by": "deadline"})]
    wrong = {"was not boosted": [serial, *rest], "has not finished": [start], "deadline": cut}
    for words, events in wrong.items():
        with pytest.raises(Conflict, match=words):
            RunLog.from_events("run-a", events)
    short = [e for e in ran.events if not isinstance(e, StepCompleted) or e.node < 9]
    with pytest.raises(Conflict, match="lacks results"):
        asyncio.run(replay_log(RunLog.from_events("run-a", short)))
    assert any(isinstance(event, RolloutsAllowed) for event in rest)


# ---------------------------------------------------------------- in the service


LONG = replace(SPEC, n=40, max_step_tokens=4)


@pytest_asyncio.fixture
async def boosted(serve: Serve) -> Rig:
    made = await serve(max_running=2)
    made.served.rollout_cost = make_cost(0.0)
    # The engines' time is virtual. The daemon's own, which is not, would decide beside it.
    made.service._boosting._daemon_time = DaemonTime(lambda: 0)
    return made


async def test_a_run_alone_is_boosted_its_stored_log_replays_and_it_is_not_continued(
    boosted: Rig,
) -> None:
    run = boosted.service.submit(LONG)
    result = await run.result()
    assert result["deterministic"] is False
    await asyncio.sleep(1.0)
    log = RunLog.from_events(run.id, [e for _, e in await log_of(boosted.service.run(run.id))])
    assert max(rollouts for _, rollouts in log.script) > 1
    assert await replay_log(log) is None
    assert boosted.service.scheduling.boosts == ()
    await boosted.assert_idle()
    with pytest.raises(Conflict, match="was boosted"):
        boosted.service.submit(replace(LONG, token_budget=10_000), continues=run.id)


async def test_who_does_not_ask_is_not_boosted(boosted: Rig) -> None:
    run = boosted.service.submit(replace(LONG, options={}))
    await run.result()
    events = [event for _, event in await log_of(boosted.service.run(run.id))]
    assert not any(isinstance(event, RolloutsAllowed) and event.rollouts > 1 for event in events)


async def test_runs_are_boosted_though_another_waits_for_their_end(boosted: Rig) -> None:
    """Steps take the same time whatever the batch, so it comes in sooner."""
    runs = [boosted.service.submit(replace(LONG, seed=seed)) for seed in range(3)]
    await asyncio.sleep(0.2)
    assert runs[2].estimate.position is not None
    [state] = boosted.service.scheduling.boosts
    assert max(state.runs.values()) > 1
    await asyncio.gather(*(run.result() for run in runs))


async def test_a_cancelled_run_leaves_the_board(boosted: Rig) -> None:
    run, other = boosted.service.submit(LONG), boosted.service.submit(replace(LONG, seed=1))
    await asyncio.sleep(0.2)
    run.cancel("enough")
    await other.result()
    await asyncio.sleep(1.0)
    assert boosted.service.scheduling.boosts == ()
    await boosted.assert_idle()


# ---------------------------------------------------------------- runs that continue others


NAME = "run-" + "ab-0" * 4


@every_strategy
async def test_a_continued_run_builds_the_tree_of_one_and_repeats_no_work(strategy: str) -> None:
    spec, engines = spec_of(strategy), sim_engines()
    asked = record_requests(engines)
    whole = await drive(engines, spec)
    needed = Counter(map(type, asked))
    for part in (1, whole.outcome.tree.committed_tokens // 2):
        engines = sim_engines()
        asked = record_requests(engines)
        short = await drive(engines, replace(spec, token_budget=part))
        first = Counter(map(type, asked))
        told: list[Any] = []
        driver = driver_of(engines, spec, told.append, EarlierRun.from_events(short.events))
        outcome = await driver.run()
        assert outcome == whole.outcome
        assert driver.probe_tokens == sum(p.tokens for p in told if type(p).__name__ == "Probed")
        assert Counter(map(type, asked)) == needed
        assert first[ExtendRequest] < needed[ExtendRequest] or short.outcome.cut_by is None


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
    assert [run.id for run in rig.store.list_runs()] == [NAME]


@pytest.mark.parametrize(
    "name", ["", "mine", "run-1", "run-" + "A" * 12, "run-" + "a" * 11, "run-" + "a/" * 8]
)
async def test_a_malformed_name_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(RequestError, match="it must be run-"):
        rig.service.submit(BEAM, run_id=name)
    assert rig.store.list_runs() == []


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
