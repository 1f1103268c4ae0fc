"""The one place where pure search meets the engines: command -> work -> result -> tell.

Reads in one screen (`Driver.run`). All tasks belong to one TaskGroup; cancelling the driver
cancels every open engine request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, assert_never

from flashedge import events
from flashedge.answers.equality import group_answers
from flashedge.certainty.history import History
from flashedge.engine.base import Chunk, ExtendRequest, Generator, Verifier
from flashedge.events import EarlyExit, EngineRestarted, Event, Progress
from flashedge.runtime.drive.earlier_run import NOTHING, Recall
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.event_emitter import EventEmitter
from flashedge.runtime.drive.ordering import in_order
from flashedge.runtime.drive.probing import probe_request, probed
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.drive.scoring import Scoring
from flashedge.runtime.drive.segments import segment_of
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.drive.stopwatch import Stopwatch
from flashedge.runtime.drive.task_groups import first_error
from flashedge.runtime.request.spec import RunSpec
from flashedge.search.base import (
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Probe,
    ProbeResult,
    Result,
    Score,
    Scored,
    Search,
    SearchState,
)
from flashedge.search.tree import Tree
from flashedge.types import Granularity, NodeId, Speculation, TokenIds

PROGRESS_S = 0.1
DEADLINE = "deadline"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished search leaves. cut_by: what ended it before its own end (certainty,
    non_convergence, budget, deadline), None if nothing did."""

    tree: Tree
    finish: Finish
    history: History
    cut_by: str | None

    @property
    def certainty(self) -> float | None:
        """At the last checkpoint."""
        return self.history[-1].certainty if self.history else None

    @property
    def deadline(self) -> bool:
        """Whether the wall clock cut it."""
        return self.cut_by == DEADLINE


class Driver:
    """Drives one search. `emit` takes its events in order; `recall` answers for the engines."""

    def __init__(
        self,
        search: Search[Any],
        spec: RunSpec,
        prompt_ids: TokenIds,
        engines: Engines,
        emit: Callable[[Event], None],
        recall: Recall = NOTHING,
    ) -> None:
        self._search = search
        self._spec = spec
        self._prompt_ids = prompt_ids
        self._engines = engines
        self._emit = emit
        self._recall = recall
        self._inbox: asyncio.Queue[Result] = asyncio.Queue()
        self._work: set[asyncio.Task[Any]] = set()
        self._tokens: dict[NodeId, int] = {}
        self._emitter = EventEmitter(emit, spec.aggregate)
        self._speculation_client = SpeculationClient(search, engines)
        self._restarts = {e: e.health().restarts for e in (engines.generator, engines.verifier)}
        self.generating = Stopwatch()
        self.scoring = Scoring(
            search,
            spec.problem,
            engines,
            self._speculation_client,
            recall,
            self._note_restart(engines.verifier, "verifier"),
        )
        self.probe_tokens = 0

    async def run(self) -> Outcome:
        """Raises what the engines raise after their retries; CancelledError when cancelled."""
        search, until, late = self._search, self._until(), False
        state, commands = search.start(self._spec.problem, self._spec.seed, self._spec.limits)
        with first_error():
            async with self._speculation_client, asyncio.TaskGroup() as group:
                ticker = group.create_task(self._report_progress())
                while (finish := self._begin(commands, state, group)) is None:
                    result = await self._next(until)
                    if result is None:
                        late, until = True, None
                        self._drop_work()
                        state, commands = search.conclude(state)
                    else:
                        told, commands = search.tell(state, result)
                        if told is not state:  # else it came too late to count
                            state = told
                            self._emitter.result(result, state.tree)
                            self._emitter.certainty(state.history)
                self._drop_work()
                ticker.cancel()
        cut_by = DEADLINE if late else finish.cut_by
        if cut_by is not None:
            self._emit(EarlyExit(reason=cut_by, tokens=state.tree.committed_tokens))
        return Outcome(tree=state.tree, finish=finish, history=state.history, cut_by=cut_by)

    @property
    def speculation(self) -> Speculation:
        """What was done ahead, whole once the run is over."""
        return self._speculation_client.told

    # ------------------------------------------------------------ commands

    def _begin(
        self, commands: tuple[Command, ...], state: SearchState, group: asyncio.TaskGroup
    ) -> Finish | None:
        """Start the work that `commands` ask for; the Finish among them, if any."""
        tree = state.tree
        if commands:
            self._emitter.marks(tree)
        if self._speculation_client.next_level(
            state, [c for c in commands if isinstance(c, Expand)]
        ):
            self._start(group, self._speculation_client.settle())
        finish = None
        for command in in_order(commands, tree, self._engines.ordering):
            match command:
                case Expand(parent=parent, children=children, granularity=granularity):
                    self._emitter.expansion(tree, command)
                    ids = (*self._prompt_ids, *tree.path_token_ids(parent))
                    steps = tree.path_steps(parent)
                    for child in children:
                        known = self._recall.segments.get(child.node)
                        if known is not None:
                            self._inbox.put_nowait(Generated(node=child.node, segment=known))
                            continue
                        self._start(group, self._extend(child, ids, steps, granularity, group))
                case Score(nodes=nodes):
                    self._start(group, self._score_all(nodes, state, group))
                case Cluster(nodes=nodes):
                    self._start(group, self._cluster(nodes, tree))
                case Probe():
                    if (told := self._recall.probes.get(command.node)) is not None:
                        self._answer_probe(told)
                        continue
                    self._start(group, self._probe(command, tree))
                case Finish():
                    finish = command
                case _:
                    assert_never(command)
        return finish

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = group.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def _drop_work(self) -> None:
        """Cancel what is still out: its result would be ignored."""
        for task in self._work:
            task.cancel()
        self._tokens.clear()

    async def _extend(
        self,
        child: Child,
        ids: TokenIds,
        steps: tuple[str, ...],
        granularity: Granularity,
        group: asyncio.TaskGroup,
    ) -> None:
        """ids, steps: of the path to the parent."""
        generator = self._engines.generator
        request = ExtendRequest(
            token_ids=ids,
            seed=child.seed,
            sampling=self._spec.sampling,
            max_tokens=granularity.max_tokens,
            to_boundary=not granularity.to_end,
            follow_up=self._speculation_client.follow_up(child.node),
        )

        async def work() -> list[Chunk]:
            chunks: list[Chunk] = []
            self._tokens[child.node] = 0
            async with aclosing(generator.extend(request)) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    self._tokens[child.node] += len(chunk.token_ids)
            return chunks

        with self.generating.open():
            chunks = await retry_after_restart(
                generator, work, self._note_restart(generator, "generator")
            )
        self._tokens.pop(child.node, None)
        self._speculation_client.count(chunks)
        segment = segment_of(chunks, generator.codec)
        self.scoring.came(child.node, steps, segment, partial(self._start, group))
        self._inbox.put_nowait(Generated(node=child.node, segment=segment))

    async def _score_all(
        self, nodes: tuple[NodeId, ...], state: SearchState, group: asyncio.TaskGroup
    ) -> None:
        await self._speculation_client.look()
        for node in nodes:
            if (scores := self.scoring.known(state.tree, node)) is not None:
                self._inbox.put_nowait(Scored(node=node, scores=scores))
            else:
                self._start(group, self._score(node, state))

    async def _score(self, node: NodeId, state: SearchState) -> None:
        self._inbox.put_nowait(await self.scoring.score(state, node))

    async def _cluster(self, nodes: tuple[NodeId, ...], tree: Tree) -> None:
        engines, paths = self._engines, {node: tree.path_steps(node) for node in nodes}
        found = await group_answers(paths, self._spec.answers, engines.grader, engines.texts)
        self._inbox.put_nowait(Clustered(answers=found))

    async def _probe(self, probe: Probe, tree: Tree) -> None:
        """Where no token fits behind the suffix the model says nothing."""
        generator = self._engines.generator
        path = (*self._prompt_ids, *tree.path_token_ids(probe.node))
        request = probe_request(probe, path, self._spec.sampling, generator)
        kept: TokenIds = ()
        text = ""
        if request is not None:
            with self.generating.open():
                kept, text = await retry_after_restart(
                    generator,
                    lambda: probed(request, probe.suffix, generator),
                    self._note_restart(generator, "generator"),
                )
        self._answer_probe(events.Probed(node=probe.node, text=text, tokens=len(kept)))

    def _answer_probe(self, told: events.Probed) -> None:
        self.probe_tokens += told.tokens
        self._emit(told)
        self._inbox.put_nowait(ProbeResult(node=told.node, text=told.text))

    # ------------------------------------------------------------ time

    def _until(self) -> float | None:
        """Loop time at which the run is cut, None without a deadline."""
        limit = self._spec.deadline_s
        return None if limit is None else asyncio.get_running_loop().time() + limit

    async def _next(self, until: float | None) -> Result | None:
        """The next result, None when the deadline comes first."""
        try:
            async with asyncio.timeout_at(until):
                return await self._inbox.get()
        except TimeoutError:
            return None

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            if self._tokens:
                self._emit(Progress(tokens=tuple(self._tokens.items())))

    def _note_restart(self, engine: Generator | Verifier, name: str) -> Callable[[float], None]:
        """Tells each restart once, however many requests waited for it."""

        def note(waited_s: float) -> None:
            restarts = engine.health().restarts
            if restarts != self._restarts[engine]:
                self._restarts[engine] = restarts
                self._emit(EngineRestarted(engine=name, waited_s=waited_s))

        return note
