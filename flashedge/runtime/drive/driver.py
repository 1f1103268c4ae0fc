"""Drives one search: runs its commands on the engines and tells it the results.

`Driver.run` is the loop. All tasks belong to one TaskGroup, so cancelling the driver cancels every
open engine request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar, assert_never, cast

from flashedge import events
from flashedge.answers.grouping import group_answers
from flashedge.answers.structured import list_call_marks
from flashedge.engine.base import Chunk
from flashedge.events import EarlyExit, Event
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.event_emitter import EventEmitter
from flashedge.runtime.drive.growth import Growth
from flashedge.runtime.drive.open_work import OpenWork
from flashedge.runtime.drive.ordering import order_commands
from flashedge.runtime.drive.outcome import DEADLINE, Outcome
from flashedge.runtime.drive.path_request import build_path_request
from flashedge.runtime.drive.probing import build_probe_request, run_probe
from flashedge.runtime.drive.restart_notes import RestartNotes
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.drive.scoring import Scoring
from flashedge.runtime.drive.segments import StepTexts, build_segment
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.drive.stopwatch import Stopwatch
from flashedge.runtime.drive.task_groups import raise_first_error
from flashedge.runtime.request.request import Request
from flashedge.runtime.thinking import Thinking
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.search.base import (
    Cancel,
    Child,
    Cluster,
    Clustered,
    Command,
    Expand,
    Finish,
    Generated,
    Probe,
    ProbeResult,
    Reached,
    Result,
    Score,
    Scored,
    Search,
    SearchState,
    Watch,
)
from flashedge.search.mcts.rollouts import Allowance, MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import Tree
from flashedge.types import Granularity, NodeId, Speculation, TokenIds

PROGRESS_S = 0.1
T = TypeVar("T")


class Driver:
    """Drives one search."""

    def __init__(
        self,
        search: Search[Any],
        spec: Request,
        prompt_ids: TokenIds,
        engines: Engines,
        emit: Callable[[Event], None],
        earlier: EarlierRun = NO_EARLIER_RUN,
        on_turn: Callable[[Tree, Sequence[Command]], None] = lambda tree, commands: None,
    ) -> None:
        """emit: receives the run's events in order. earlier: answers for the engines where it
        already has the result. on_turn: receives what the search asks for at each turn."""
        self._search = search
        self._spec = spec
        self._call_marks = list_call_marks(spec.guidance)
        self._prompt_ids = prompt_ids
        self._engines = engines
        self._emit = emit
        self._on_turn = on_turn
        self._earlier = earlier
        self._inbox: asyncio.Queue[Result | Allowance] = asyncio.Queue()
        self._work = OpenWork()
        self._growth = Growth(engines.generator.codec.decode)
        self.thinking = Thinking.of_prompt(engines.generator.codec, prompt_ids)
        self._emitter = EventEmitter(emit, spec.aggregate, self.thinking.take_answer)
        self._texts = StepTexts(
            codec=engines.generator.codec,
            rule=spec.step_rule,
            max_step_tokens=spec.max_step_tokens,
        )
        self._speculation_client = SpeculationClient(search, spec, engines, self._texts)
        self._restarts = RestartNotes(engines.generator, engines.verifier, emit)
        self._reads_prompt: NodeId | None = None
        """The node whose request is the run's first. Those beside it find the prompt's KV."""
        self.generating = Stopwatch()
        self.scoring = Scoring(
            search,
            spec,
            engines,
            self._speculation_client,
            earlier,
            self._restarts.of(engines.verifier),
            self.thinking,
        )
        self.probe_tokens = 0
        self.cancelled_tokens = 0
        """Tokens generated for nodes that the search cancelled, without those that the engine had
        not sent yet (`Optimizations.joined_tokens`)."""

    async def run(self) -> Outcome:
        """Run the search to its end or to its deadline. Raises what the engines raise after their
        retries, CancelledError when cancelled."""
        search, late, limit_s = self._search, False, self._spec.deadline_s
        cut_at = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        state, commands = search.start(self._spec.problem, self._spec.seed, self._spec.limits)
        with raise_first_error():
            async with self._speculation_client, asyncio.TaskGroup() as self._group:
                ticker = self._group.create_task(self._report_progress())
                while (finish := self._execute(commands, state)) is None:
                    result = await self._receive(cut_at)
                    if result is None:
                        late, cut_at = True, None
                        self._cancel_work()
                        state, commands = search.conclude(state)
                    else:
                        new_state, commands = _tell(search, state, result)
                        if new_state is not state:  # the same state: the result was too late
                            turn = state.turn if isinstance(state, MctsState) else 0
                            state = new_state
                            self._emitter.emit_result(result, state.tree, turn)
                            if isinstance(state, MctsState):
                                self._emitter.emit_rollouts(state.rollouts, state.num_futile)
                                self._emitter.emit_flights(state.flights, state.num_cancelled)
                            self._emitter.emit_certainty(state.history)
                self._cancel_work()
                ticker.cancel()
        cut_by = DEADLINE if late else finish.cut_by
        if cut_by is not None:
            self._emit(EarlyExit(reason=cut_by, tokens=state.tree.committed_tokens))
        return Outcome(tree=state.tree, finish=finish, history=state.history, cut_by=cut_by)

    def allow(self, rollouts: int, of: int = 0) -> None:
        """Tell the search how many rollouts may be in flight from now on. See `Allowance`."""
        self._inbox.put_nowait(Allowance(rollouts=rollouts, of=of))

    @property
    def speculation(self) -> Speculation:
        """What was drawn ahead and what the run used of it. Complete once the run is over."""
        return self._speculation_client.usage

    # ------------------------------------------------------------ commands

    def _execute(self, commands: tuple[Command, ...], state: SearchState) -> Finish | None:
        """Start the work that the commands ask for. Returns the Finish among them, if any."""
        tree = state.tree
        if commands:
            self._on_turn(tree, commands)
            self._emitter.emit_statuses(tree, commands)
        if (unused := self._speculation_client.follow(state, commands)) is not None:
            self._start(self._speculation_client.drop_unused(unused))
        finish = None
        for command in order_commands(commands, tree, self._engines.ordering):
            match command:
                case Expand(parent=parent, children=children, granularity=granularity):
                    self._emitter.emit_expansion(tree, command)
                    ids = (*self._prompt_ids, *tree.path_token_ids(parent))
                    steps = tree.path_steps(parent)
                    for child in children:
                        known = self._earlier.find_segment(tree, child.node)
                        if known is not None:
                            self._inbox.put_nowait(Generated(node=child.node, segment=known))
                            continue
                        work = self._extend(child, ids, steps, granularity)
                        self._start(work, child.node)
                case Score(nodes=nodes):
                    self._start(self._score_level(nodes, state))
                case Cluster(nodes=nodes):
                    self._start(self._cluster(nodes, tree))
                case Probe():
                    if (probed := self._earlier.find_probe(tree, command.node)) is not None:
                        self._answer_probe(replace(probed, node=command.node))
                        continue
                    self._start(self._probe(command, tree))
                case Cancel(nodes=nodes):
                    self._emitter.emit_cancelled(command)
                    self._work.cancel(nodes)
                    self.cancelled_tokens += self._growth.drop(nodes)
                case Watch(tokens=tokens):
                    for node in self._growth.watch(tokens):
                        self._tell_reached(node)
                case Finish():
                    finish = command
                case _:
                    assert_never(command)
        return finish

    def _start(self, work: Coroutine[Any, Any, T], node: NodeId | None = None) -> asyncio.Task[T]:
        return self._work.start(self._group, work, node)

    def _cancel_work(self) -> None:
        """Cancel the open work, whose results would be ignored."""
        self._work.cancel_all()
        self._growth.clear()

    async def _extend(
        self, child: Child, ids: TokenIds, steps: tuple[str, ...], granularity: Granularity
    ) -> None:
        """Generate a child's segment. ids, steps: tokens and steps of the path to the parent."""
        generator = self._engines.generator
        request = build_path_request(
            self._spec,
            ids,
            child.seed,
            granularity,
            prompt_tokens=len(self._prompt_ids),
            engines=self._engines,
            continuation=self._get_continuation(child.node),
        )

        if self._reads_prompt is None:
            self._reads_prompt = child.node

        async def work() -> list[Chunk]:
            chunks: list[Chunk] = []
            self._growth.start(child.node)
            async with aclosing(generator.extend(request)) as stream:
                async for chunk in stream:
                    if child.node == self._reads_prompt:
                        self._emitter.emit_prompt(len(self._prompt_ids), chunk.cached_tokens)
                    chunks.append(chunk)
                    if self._growth.add(child.node, chunk.token_ids):
                        self._tell_reached(child.node)
            return chunks

        with self.generating.open():
            chunks = await retry_after_restart(generator, work, self._restarts.of(generator))
        self._growth.end(child.node)
        self._speculation_client.count(chunks)
        segment = build_segment(chunks, self._texts, to_end=granularity.to_end)
        self.scoring.receive(child.node, steps, segment, self._start)
        self._inbox.put_nowait(Generated(node=child.node, segment=segment))

    def _tell_reached(self, node: NodeId) -> None:
        self._inbox.put_nowait(Reached(node=node, tokens=self._growth.count(node)))

    def _get_continuation(self, node: NodeId) -> Continuation | None:
        """What to draft behind a node. Drafts know no grammar, so guided paths have none."""
        if self._spec.guidance is not None:
            return None
        return self._speculation_client.get_continuation(node)

    async def _score_level(self, nodes: tuple[NodeId, ...], state: SearchState) -> None:
        await self._speculation_client.fetch_drafts()
        for node in nodes:
            if self._work.is_cancelled(node):
                continue
            if (scores := self.scoring.find_scores(state.tree, node)) is not None:
                self._inbox.put_nowait(Scored(node=node, scores=scores))
            else:
                self._start(self._score(node, state), node)

    async def _score(self, node: NodeId, state: SearchState) -> None:
        self._inbox.put_nowait(await self.scoring.score(state, node))

    async def _cluster(self, nodes: tuple[NodeId, ...], tree: Tree) -> None:
        engines, take_answer = self._engines, self.thinking.take_answer
        paths = {node: take_answer(tree.path_steps(node)) for node in nodes}
        found = await group_answers(
            paths, self._spec.answers, engines.grader, engines.texts, self._call_marks
        )
        self._inbox.put_nowait(Clustered(answers=found.answers, is_unboxed=found.is_unboxed))

    async def _probe(self, probe: Probe, tree: Tree) -> None:
        """Ask a chain for its answer. The answer is empty where no token fits after the suffix."""
        generator = self._engines.generator
        path = (*self._prompt_ids, *tree.path_token_ids(probe.node))
        request = build_probe_request(probe, path, self._spec, generator, self._engines.program)
        kept: TokenIds = ()
        text = ""
        if request is not None:
            with self.generating.open():
                kept, text = await retry_after_restart(
                    generator,
                    lambda: run_probe(request, probe.suffix, generator),
                    self._restarts.of(generator),
                )
        self._answer_probe(events.Probed(node=probe.node, text=text, tokens=len(kept)))

    def _answer_probe(self, probed: events.Probed) -> None:
        self.probe_tokens += probed.tokens
        self._emit(probed)
        self._inbox.put_nowait(ProbeResult(node=probed.node, text=probed.text))

    # ------------------------------------------------------------ time

    async def _receive(self, cut_at: float | None) -> Result | Allowance | None:
        """Wait for the next result. None when the deadline passes first."""
        try:
            async with asyncio.timeout_at(cut_at):
                return await self._inbox.get()
        except TimeoutError:
            return None

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            if (progress := self._growth.report()) is not None:
                self._emit(progress)


def _tell(
    search: Search[Any], state: Any, result: Result | Allowance
) -> tuple[Any, tuple[Command, ...]]:
    """Only MCTS takes allowances; every other search ignores them."""
    if isinstance(result, Allowance):
        is_mcts = isinstance(state, MctsState)
        return cast(Mcts, search).tell(state, result) if is_mcts else (state, ())
    return search.tell(state, result)
