"""Replays a run whose rollouts were boosted: the same search with the allowances of its log.

What such a run explores depends on the clock and on other runs, but only through its allowances.
Its events hold each allowance with its turn (`RolloutsAllowed`), and the results of the engines. So
the search can be told all of this again, without engines, and must build the same tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from flashedge.answers.grouping import Grader, TextGroups, group_answers
from flashedge.answers.structured import list_call_marks
from flashedge.errors import Conflict, NotFound
from flashedge.events import Event, RolloutsAllowed, RunFinished, RunStarted, StepCompleted
from flashedge.runtime.drive.driver import DEADLINE
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.records.result import build_node
from flashedge.runtime.request.plan import Plan, is_boosted
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.base import (
    Cancel,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Probe,
    Result,
    Score,
    Scored,
    Watch,
)
from flashedge.search.step_rules import split_steps
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import Tree
from flashedge.types import NodeId

Allowances = tuple[tuple[int, int], ...]
"""(turn, rollouts) of each allowance. See `Mcts.script`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a replay needs of a finished boosted run, from its events."""

    spec: Request
    script: Allowances
    engine_results: EarlierRun
    answers: Mapping[NodeId, str | None]
    """The boxed answer of each generated node. None where the path goes on or has none."""
    answer_texts: Mapping[NodeId, str]
    """For each path with thinking, the text of its answer."""
    result: Mapping[str, Any]

    @classmethod
    def from_events(cls, run_id: str, run_events: Iterable[Event]) -> RunLog:
        """Raises Conflict for a run that can't be replayed, NotFound for a log without a start."""
        log = tuple(run_events)
        config = next((e.config for e in log if isinstance(e, RunStarted)), None)
        if config is None:
            raise NotFound(f"the log of run {run_id} has no start, so it can't be replayed")
        result = next((e.result for e in log if isinstance(e, RunFinished)), None)
        request = Plan.from_json(config).request
        if not is_boosted(request):
            raise Conflict(
                f"run {run_id} was not boosted: its seed alone repeats it",
                hint="replay a run of `flashedge solve --strategy mcts --set boost=true`",
            )
        if result is None:
            raise Conflict(f"run {run_id} has not finished, so there is no tree to compare with")
        if result.get("cut_by") == DEADLINE:
            raise Conflict(f"run {run_id} was cut by its deadline, which no log can repeat")
        return cls(
            spec=request,
            script=tuple((e.turn, e.rollouts) for e in log if isinstance(e, RolloutsAllowed)),
            engine_results=EarlierRun.from_events(log),
            answers={e.node: e.answer for e in log if isinstance(e, StepCompleted)},
            answer_texts={
                path["node"]: path["text"]
                for path in result.get("completions") or ()
                if path["reasoning"] and path["text"]
            },
            result=result,
        )


def find_difference(log: RunLog, tree: Tree, finish: Finish) -> str | None:
    """Describe the first difference of a replay from the stored result. None if there is none."""
    stored = log.result["tree"]["nodes"]
    if len(stored) != len(tree.nodes):
        return f"{len(tree.nodes)} nodes were built, {len(stored)} are stored"
    for node, was in zip(tree.nodes.values(), stored, strict=True):
        found = build_node(tree, node, log.spec)
        for name in ("parent", "token_ids", "score", "status"):
            if found[name] != was[name]:
                return f"node {node.id}: {name} is {found[name]!r}, and {was[name]!r} is stored"
    for name in ("choice", "answer"):
        if getattr(finish, name) != log.result[name]:
            return f"the {name} is {getattr(finish, name)!r}, not {log.result[name]!r}"
    return None


def build_replay_search(spec: Request, script: Allowances) -> Mcts:
    """Build the search of a boosted run. It changes its allowance by itself, as the script says."""
    search = build_search(spec)
    assert isinstance(search, Mcts), "only MCTS is boosted"
    return replace(search, script=script)


async def replay(log: RunLog, grader: Grader, texts: TextGroups) -> tuple[Tree, Finish]:
    """Replay the run. Raises Conflict if the log lacks results that the search waits for."""
    search = build_replay_search(log.spec, log.script)
    state, new = search.start(log.spec.problem, log.spec.seed, log.spec.limits)
    commands: deque[Command] = deque(new)
    results: deque[Result] = deque()
    while True:
        while commands:
            match commands.popleft():
                case Expand(children=children):
                    for node in (child.node for child in children):
                        # a node that was cancelled before its result came has none
                        if (
                            segment := log.engine_results.find_segment(state.tree, node)
                        ) is not None:
                            results.append(Generated(node=node, segment=segment))
                case Score(nodes=nodes):
                    for node in nodes:
                        if (scores := log.engine_results.find_scores(state.tree, node)) is not None:
                            results.append(Scored(node=node, scores=scores))
                case Cluster(nodes=nodes):
                    results.append(await _group(log, state.tree, nodes, grader, texts))
                case Finish() as finish:
                    return state.tree, finish
                case Cancel() | Probe() | Watch():
                    pass  # MCTS ignores results of cancelled nodes, and neither probes nor watches
                case _ as other:
                    assert_never(other)
        if not results:
            raise Conflict("the log ends before the search does: it lacks results of the engines")
        state, new = search.tell(state, results.popleft())
        commands.extend(new)


async def _group(
    log: RunLog, tree: Tree, nodes: tuple[NodeId, ...], grader: Grader, texts: TextGroups
) -> Clustered:
    boxed = {node: log.answers.get(node) for node in nodes}
    if log.spec.answers == "boxed" and any(boxed.values()):
        return Clustered(answers=await grader.cluster(boxed))
    told, marks = log.answer_texts, list_call_marks(log.spec.guidance)
    paths = {n: split_steps(told[n]) if n in told else tree.path_steps(n) for n in nodes}
    answers, is_unboxed = await group_answers(paths, log.spec.answers, grader, texts, marks)
    return Clustered(answers=answers, is_unboxed=is_unboxed)
