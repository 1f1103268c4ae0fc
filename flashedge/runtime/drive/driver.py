"""Drives one search: runs its commands on the engines and tells it the results.

`Driver.run` is the loop. All tasks belong to one TaskGroup, so cancelling the driver cancels every
open engine request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar, assert_never, cast

from flashedge.answers.grouping import group_answers
from flashedge.answers.structured import list_call_marks
from flashedge.certainty.measures import History
from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.events import EarlyExit, Event, Probed, Progress
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.drive.engines import Engines, Ordering
from flashedge.runtime.drive.event_emitter import EventEmitter
from flashedge.runtime.drive.retry import note_restarts, retry_after_restart
from flashedge.runtime.drive.scoring import ScoredEarly, Scoring
from flashedge.runtime.drive.segments import (
    ConfidenceStop,
    StepSplitter,
    build_path_request,
    build_probe_request,
    build_segment,
    run_probe,
)
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.drive.tasks import Stopwatch, raise_first_error
from flashedge.runtime.request.validation import Request
from flashedge.runtime.thinking import Thinking
from flashedge.scheduling.prefix_order import Order
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
    Watch,
)
from flashedge.search.mcts.rollouts import Allowance, MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import Tree
from flashedge.search.voting import Search, SearchState
from flashedge.types import FinishReason, Granularity, NodeId, Speculation, TokenIds

PROGRESS_S = 0.1
"""Seconds between two Progress events. Chosen by hand: with a second the dashboard's counts jump,
with a hundredth each stream carries more of these events than of all others."""
TAIL_TOKENS = 32
"""Last tokens of a growing node that an event shows as text: about a line of a terminal."""
TAILS_EVERY = 10
"""One of this many Progress events holds text, about once a second, since decoding takes time."""
MAX_TAILS = 64
"""Most nodes whose text one event holds, so that a wide search does not block the event loop."""
DEADLINE = "deadline"
"""The `cut_by` of a run that its deadline ended."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a search ended."""

    tree: Tree
    finish: Finish
    history: History
    cut_by: str | None
    """A reason of `Finish.cut_by`, or DEADLINE. None if the search reached its own end."""

    @property
    def certainty(self) -> float | None:
        """The certainty at the last checkpoint. None where none was measured."""
        return self.history[-1].certainty if self.history else None


class Driver:
    """Drives one run. `run` may be called once."""

    def __init__(
        self,
        search: Search[Any],
        asked: Request,
        prompt_ids: TokenIds,
        engines: Engines,
        emit: Callable[[Event], None],
        earlier: EarlierRun = NO_EARLIER_RUN,
        on_turn: Callable[[Tree, Sequence[Command]], None] = lambda tree, commands: None,
    ) -> None:
        """emit: receives the run's events in order. on_turn: receives the tree and new commands."""
        generator, verifier = engines.generator, engines.verifier
        self._search = search
        self._asked = asked
        self._call_marks = list_call_marks(asked.guidance)
        self._prompt_ids = prompt_ids
        self._engines = engines
        self._emit = emit
        self._on_turn = on_turn
        self._earlier = earlier
        self._inbox: asyncio.Queue[Result | Allowance | ScoredEarly] = asyncio.Queue()
        self._tasks: dict[asyncio.Task[Any], NodeId | None] = {}
        """The node of each open task. None for a task that works on several nodes or none."""
        self._cancelled: set[NodeId] = set()
        """Nodes for which no work may begin."""
        self._growth = Growth(generator.codec.decode)
        self.thinking = Thinking.of_prompt(generator.codec, prompt_ids)
        self._emitter = EventEmitter(emit, asked.aggregate, self.thinking.take_answer)
        self._splitter = StepSplitter(
            codec=generator.codec, rule=asked.step_rule, max_step_tokens=asked.max_step_tokens
        )
        self._speculation_client = SpeculationClient(search, asked, engines, self._splitter)
        self._on_restart = note_restarts(generator, "generator", emit)
        self._first_node: NodeId | None = None
        """The node of the run's first request, whose cached tokens PromptRead reports."""
        self.generating = Stopwatch()
        self.scoring = Scoring(
            search,
            asked,
            engines,
            self._speculation_client,
            earlier,
            note_restarts(verifier, "verifier", emit),
            self.thinking,
            on_early=self._inbox.put_nowait if self._speculation_client.commits_early else None,
        )
        self.probe_tokens = 0
        self.cancelled_tokens = 0
        """Tokens that were received for nodes before they were cancelled, or after the confidence
        rule had ended them."""

    async def run(self) -> Outcome:
        """Run the search to its end or to its deadline. Raises the errors of engine requests that
        still fail after their retries."""
        search, asked, is_late = self._search, self._asked, False
        loop = asyncio.get_running_loop()
        cut_at = None if asked.deadline_s is None else loop.time() + asked.deadline_s
        state, commands = search.start(asked.problem, asked.seed, asked.limits)
        with raise_first_error():
            async with self._speculation_client, asyncio.TaskGroup() as self._group:
                ticker = self._group.create_task(self._report_progress())
                while (finish := self._execute(commands, state)) is None:
                    result = await self._receive(cut_at)
                    if result is None:
                        is_late, cut_at = True, None
                        self._cancel_work()
                        state, commands = search.conclude(state)
                        continue
                    before, commands = state, ()
                    if not isinstance(result, ScoredEarly):
                        state, commands = _tell(search, state, result)
                        if state is not before:  # else the search ignored the result
                            self._emitter.emit_turn(result, before, state)
                    if self._inbox.empty():  # otherwise the next result may tell more
                        self._commit_early(state)
                self._cancel_work()
                ticker.cancel()
        cut_by = DEADLINE if is_late else finish.cut_by
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

    def _commit_early(self, state: SearchState) -> None:
        """Tell the generator which nodes of the open level are certainly kept by now."""
        client, scores = self._speculation_client, self.scoring.early_scores
        if (commits := client.find_commits(state, scores, self._growth.read)) is not None:
            self._start(client.commit(commits))

    async def _receive(self, cut_at: float | None) -> Result | Allowance | ScoredEarly | None:
        """Wait for a result. Returns None if none came before `cut_at`, by the loop's clock."""
        was_empty = self._inbox.empty()
        try:
            async with asyncio.timeout_at(cut_at):
                result = await self._inbox.get()
        except TimeoutError:
            return None
        if was_empty:  # tasks of this turn may have made requests: they go out before we think
            await asyncio.sleep(0)
        return result

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            if (progress := self._growth.report()) is not None:
                self._emit(progress)

    def _execute(self, commands: tuple[Command, ...], state: SearchState) -> Finish | None:
        """Begin the work of the commands. Returns the Finish among them, if any."""
        tree = state.tree
        if commands:
            self._on_turn(tree, commands)
            self._emitter.emit_statuses(tree, commands)
        if (unused := self._speculation_client.follow(state, commands)) is not None:
            self._start(self._speculation_client.drop_unused(unused))
        finish = None
        for command in order_commands(commands, tree, self._engines.ordering):
            match command:
                case Expand():
                    self._expand(command, tree)
                case Score(nodes=nodes):
                    self._start(self._score_level(nodes, state))
                case Cluster(nodes=nodes):
                    self._start(self._cluster(nodes, tree))
                case Probe(node=node):
                    if (probed := self._earlier.find_probe(tree, node)) is not None:
                        self._answer_probe(replace(probed, node=node))
                    else:
                        self._start(self._probe(command, tree))
                case Cancel(nodes=nodes):
                    self._emitter.emit_cancelled(command)
                    gone = frozenset(nodes)
                    self._cancelled |= gone
                    for task, at in self._tasks.items():
                        if at in gone:
                            task.cancel()
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
        task = self._group.create_task(work)
        self._tasks[task] = node
        task.add_done_callback(self._tasks.pop)
        return task

    def _cancel_work(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._growth.clear()

    def _expand(self, command: Expand, tree: Tree) -> None:
        self._emitter.emit_expansion(tree, command)
        ids = (*self._prompt_ids, *tree.path_token_ids(command.parent))
        steps = tree.path_steps(command.parent)
        for child in command.children:
            if (known := self._earlier.find_segment(tree, child.node)) is not None:
                self._inbox.put_nowait(Generated(node=child.node, segment=known))
            else:
                request = self._build_request(child, ids, command.granularity)
                work = self._extend(child.node, request, steps, command.granularity)
                self._start(work, child.node)

    def _build_request(
        self, child: Child, ids: TokenIds, granularity: Granularity
    ) -> ExtendRequest:
        client = self._speculation_client
        is_guided = self._asked.guidance is not None  # drafts know no grammar
        return build_path_request(
            self._asked,
            ids,
            child.seed,
            granularity,
            prompt_tokens=len(self._prompt_ids),
            engines=self._engines,
            may_draft=client.may_draft,
            continuation=None if is_guided else client.get_continuation(child.node),
        )

    async def _extend(
        self, node: NodeId, request: ExtendRequest, steps: tuple[str, ...], granularity: Granularity
    ) -> None:
        """Generate a node. steps: those of the path to its parent."""
        generator = self._engines.generator
        if self._first_node is None:
            self._first_node = node

        async def work() -> list[Chunk]:
            chunks: list[Chunk] = []
            rule = granularity.confidence_rule
            stop = rule and ConfidenceStop(rule)
            self._growth.start(node)
            async with aclosing(generator.extend(request)) as stream:
                async for drawn in stream:
                    chunk = stop.cut(drawn) if stop else drawn
                    self.cancelled_tokens += len(drawn.token_ids) - len(chunk.token_ids)
                    if node == self._first_node:
                        self._emitter.emit_prompt(len(self._prompt_ids), chunk.cached_tokens)
                    chunks.append(chunk)
                    if self._growth.add(node, chunk.token_ids):
                        self._tell_reached(node)
                    if chunk.finish is FinishReason.UNSURE:
                        break
            return chunks

        with self.generating.open():
            chunks = await retry_after_restart(generator, work, self._on_restart)
        self._growth.end(node)
        self._speculation_client.count(chunks)
        segment = build_segment(chunks, self._splitter, to_end=granularity.to_end)
        self.scoring.receive(node, steps, segment, self._start)
        self._inbox.put_nowait(Generated(node=node, segment=segment))

    def _tell_reached(self, node: NodeId) -> None:
        self._inbox.put_nowait(Reached(node=node, tokens=self._growth.count(node)))

    async def _probe(self, probe: Probe, tree: Tree) -> None:
        """Ask a path for its answer. The answer is empty where no token fits after the suffix."""
        generator = self._engines.generator
        path = (*self._prompt_ids, *tree.path_token_ids(probe.node))
        request = build_probe_request(probe, path, self._asked, generator, self._engines.program)
        ids: TokenIds = ()
        text = ""
        if request is not None:
            with self.generating.open():
                ids, text = await retry_after_restart(
                    generator, lambda: run_probe(request, probe, generator), self._on_restart
                )
        self._answer_probe(Probed(node=probe.node, text=text, tokens=len(ids)))

    def _answer_probe(self, probed: Probed) -> None:
        self.probe_tokens += probed.tokens
        self._emit(probed)
        self._inbox.put_nowait(ProbeResult(node=probed.node, text=probed.text))

    async def _score_level(self, nodes: tuple[NodeId, ...], state: SearchState) -> None:
        await self._speculation_client.fetch_drafts()
        for node in nodes:
            if node in self._cancelled:
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
        answers, is_unboxed = await group_answers(
            paths, self._asked.answers, engines.grader, engines.texts, self._call_marks
        )
        self._inbox.put_nowait(Clustered(answers=answers, is_unboxed=is_unboxed))


def _tell(
    search: Search[Any], state: Any, result: Result | Allowance
) -> tuple[Any, tuple[Command, ...]]:
    if not isinstance(result, Allowance):
        return search.tell(state, result)
    return cast(Mcts, search).tell(state, result) if isinstance(state, MctsState) else (state, ())


def order_commands(commands: Sequence[Command], tree: Tree, order: Ordering) -> Iterator[Command]:
    """Order expansions by the paths of their parents, and nodes to score by the paths to them.
    Children of one parent keep their order. The order changes no result."""

    def order_nodes(nodes: Sequence[NodeId]) -> Order:
        return order([[at.id for at in tree.path(node)] for node in nodes])

    expansions = [c for c in commands if isinstance(c, Expand)]
    positions = iter(order_nodes([c.parent for c in expansions]))
    for command in commands:
        match command:
            case Expand():
                yield expansions[next(positions)]
            case Score(nodes=nodes):
                yield replace(command, nodes=tuple(nodes[i] for i in order_nodes(nodes)))
            case _:
                yield command


class Growth:
    """The tokens of the nodes that are being generated, for Progress events and watched nodes."""

    def __init__(self, decode: Callable[[TokenIds], str]) -> None:
        self._decode = decode
        self._ids: dict[NodeId, list[int]] = {}
        self._ended: dict[NodeId, int] = {}
        self._watched: dict[NodeId, int] = {}
        self._reports = 0

    def start(self, node: NodeId) -> None:
        self._ids[node] = []

    def watch(self, tokens: Mapping[NodeId, int]) -> list[NodeId]:
        """tokens: by node, the number at which `add` reports it. Returns the nodes that have it."""
        self._watched |= tokens
        return [node for node in tokens if self._is_reached(node)]

    def add(self, node: NodeId, token_ids: TokenIds) -> bool:
        """Add new tokens. Returns whether the node has now reached its watched number."""
        self._ids[node] += token_ids
        return self._is_reached(node)

    def count(self, node: NodeId) -> int:
        return len(self._ids.get(node, ()))

    def read(self, node: NodeId) -> str:
        """The whole characters that a growing node has so far."""
        return self._decode(tuple(self._ids.get(node, ()))).rstrip("\N{REPLACEMENT CHARACTER}")

    def end(self, node: NodeId) -> None:
        self._ended[node] = self._forget(node)

    def drop(self, nodes: Iterable[NodeId]) -> int:
        """Forget nodes that were cancelled. Returns the number of tokens that they generated."""
        return sum(self._forget(node) + self._ended.pop(node, 0) for node in nodes)

    def clear(self) -> None:
        self._ids.clear()

    def report(self) -> Progress | None:
        """Build an event with all counts, and each `TAILS_EVERY`-th time with the last text of up
        to `MAX_TAILS` nodes. Returns None while no node is being generated."""
        if not self._ids:
            return None
        tails: tuple[tuple[NodeId, str], ...] = ()
        if self._reports % TAILS_EVERY == 0:
            tails = tuple(
                (node, self._decode(tuple(ids[-TAIL_TOKENS:])).strip("�"))
                for node, ids in islice(self._ids.items(), MAX_TAILS)
                if ids
            )
        self._reports += 1
        return Progress(tokens=tuple((n, len(ids)) for n, ids in self._ids.items()), tails=tails)

    def _is_reached(self, node: NodeId) -> bool:
        wanted = self._watched.get(node)
        if wanted is None or self.count(node) < wanted:
            return False
        del self._watched[node]
        return True

    def _forget(self, node: NodeId) -> int:
        self._watched.pop(node, None)
        return len(self._ids.pop(node, ()))
