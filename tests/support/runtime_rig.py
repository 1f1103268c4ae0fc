"""What the runtime's tests are written with: simulated engines, a driver's story, its fold.

Paths here have three to five steps of a few words, so that a run takes milliseconds; everything
runs on virtual time.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.base import EngineProxy, ExtendRequest, ScoreRequest, StepScores
from flashedge.events import (
    CertaintyUpdated,
    EarlyExit,
    EngineRestarted,
    Event,
    KvSplitChanged,
    NodeScored,
    NodesExpanded,
    NodesMarked,
    Offloaded,
    Probed,
    Progress,
    PromptRead,
    Restored,
    RolloutsAllowed,
    RolloutsEnded,
    RolloutsInFlight,
    StepCompleted,
)
from flashedge.models.shape import ModelShape
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.aggregates import aggregate
from flashedge.search.tree import ROOT, Tree
from flashedge.types import NodeId, Problem, TokenIds
from scripts.lab.sim.engine_loop import SimEngine
from scripts.lab.sim.model import SimModel, StepTrace, TraceRow
from scripts.lab.sim.pair import Faults, SimConfig, SimulatedGenerator, SimulatedVerifier
from tests.support.engine_rig import settle

STEPS = ((6, 9, 4, 7), (5, 8, 6), (6, 7, 5, 8, 6), (4, 9, 5), (5, 6, 7, 6, 5))
TRACE = StepTrace((TraceRow(prompt_tokens=8, step_tokens=STEPS),))
MODEL = SimModel(TRACE)
TINY = ModelShape(name="tiny", params=2**22, layers=2, heads=1, kv_heads=1, head_dim=16)
CONFIG = SimConfig(shape=TINY, kv_bytes=4096 * TINY.kv_bytes_per_token, max_model_len=256)
TIGHT = replace(CONFIG, block_tokens=4, kv_bytes=512 * TINY.kv_bytes_per_token)
ROOM = replace(TIGHT, kv_bytes=2 * TIGHT.kv_bytes)
PROBLEM = Problem.from_text("How many are left?")
BEAM = Request(problem=PROBLEM, pair="bundled", n=8, seed=7)
BEST = replace(BEAM, strategy="best_of_n")


def sim_engines(
    *,
    config: SimConfig = CONFIG,
    generator: Faults | None = None,
    verifier: Faults | None = None,
    model: SimModel = MODEL,
    kind: type[SimulatedGenerator] = SimulatedGenerator,
) -> Engines:
    """A pair on one device, with the real grader (which settles whole numbers by itself)."""
    gate = asyncio.Lock()
    return Engines(
        generator=kind(config, model, faults=generator, gate=gate),
        verifier=SimulatedVerifier(config, faults=verifier, gate=gate),
        grader=MathGrader(),
    )


def both(engines: Engines) -> tuple[SimEngine, SimEngine]:
    generator, verifier = engines.generator, engines.verifier
    assert isinstance(generator, SimEngine)
    assert isinstance(verifier, SimEngine)
    return generator, verifier


def prompt_of(engines: Engines, spec: Request) -> TokenIds:
    return engines.generator.codec.encode_chat(spec.problem.messages)


def driver_of(
    engines: Engines,
    spec: Request,
    emit: Callable[[Event], None],
    earlier: EarlierRun = NO_EARLIER_RUN,
    **options: Any,
) -> Driver:
    prompt = prompt_of(engines, spec)
    return Driver(build_search(spec), spec, prompt, engines, emit, earlier, **options)


class RecordingVerifier(EngineProxy[Any]):
    """Records what it is asked, and raises what `refuse` returns."""

    def __init__(
        self, engine: Any, refuse: Callable[[ScoreRequest], Exception | None] = lambda request: None
    ) -> None:
        super().__init__(engine)
        self.asked: list[ScoreRequest] = []
        self._refuse = refuse

    async def score(self, request: ScoreRequest) -> StepScores:
        self.asked.append(request)
        if (error := self._refuse(request)) is not None:
            raise error
        return cast(StepScores, await self._engine.score(request))


def record_requests(engines: Engines) -> list[ExtendRequest | ScoreRequest]:
    """What the engines are asked from now on."""
    asked: list[ExtendRequest | ScoreRequest] = []
    for engine, name in ((engines.generator, "extend"), (engines.verifier, "score")):
        method = getattr(engine, name)

        def note(request: Any, method: Any = method) -> Any:
            asked.append(request)
            return method(request)

        setattr(engine, name, note)
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    outcome: Outcome
    events: list[Event]

    def list_events(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def drive(engines: Engines, spec: Request) -> Story:
    """A run whose events tell its tree."""
    events: list[Event] = []
    outcome = await driver_of(engines, spec, events.append).run()
    assert folded(events) == nodes_of(outcome.tree, spec)
    return Story(outcome=outcome, events=events)


async def assert_nothing_left(engines: Engines) -> None:
    """No request, no block, and (once the engines' last steps are over) no task but ours."""
    for engine in both(engines):
        await settle(engine, 0.001)
    await asyncio.sleep(1.0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


# ---------------------------------------------------------------- the tree, seen twice


@dataclass
class Seen:
    """A node as its events, or the tree, tell it."""

    parent: NodeId | None
    depth: int
    index: int
    seed: int
    status: str = "generating"
    token_ids: TokenIds = ()
    logprobs: tuple[float, ...] = ()
    text: str = ""
    steps: tuple[str, ...] = ()
    finish: str = ""
    scores: tuple[float, ...] = ()
    score: float | None = None


def folded(events: Iterable[Event]) -> dict[NodeId, Seen]:
    """A follower's tree. Asserts that each event may come when it comes."""
    nodes: dict[NodeId, Seen] = {}
    for event in events:
        match event:
            case NodesExpanded(parent=parent, depth=depth, children=children):
                if parent != ROOT:
                    assert nodes[parent].status == "active"
                    assert depth == nodes[parent].depth + 1
                for node, index, seed in children:
                    assert node not in nodes
                    nodes[node] = Seen(parent, depth, index, seed)
            case Progress(tokens=tokens):
                assert tokens
                assert all(nodes[node].status == "generating" for node, _ in tokens)
            case StepCompleted(node=node):
                seen = nodes[node]
                assert seen.status == "generating"
                seen.status = "generated"
                seen.token_ids, seen.logprobs = event.token_ids, event.logprobs
                seen.text, seen.steps, seen.finish = event.text, event.steps, event.finish
            case NodeScored(node=node, scores=scores, score=score):
                assert nodes[node].status == "generated"
                assert nodes[node].score is None
                nodes[node].scores, nodes[node].score = scores, score
            case NodesMarked(status=status, nodes=marked):
                for node in set(marked) - {ROOT}:
                    seen = nodes[node]
                    assert seen.status != status
                    if status == "cancelled":  # a search drops what was generated
                        seen = nodes[node] = Seen(seen.parent, seen.depth, seen.index, seen.seed)
                    seen.status = status
            case RolloutsEnded(nodes=ends):
                assert set(ends) <= nodes.keys()
            case Probed(node=node, tokens=tokens):
                assert nodes[node].status == "active"
                assert tokens >= 0
            case EarlyExit(reason=reason):
                causes = {"certainty", "non_convergence", "budget", "deadline"}
                assert reason in causes | {"reward", "futility"}
            case RolloutsAllowed(rollouts=rollouts, of=of):
                assert rollouts >= 1
                assert not of or rollouts <= of
            case RolloutsInFlight(flights=flights):
                assert {node for _, node in flights} <= {ROOT, *nodes}
            case PromptRead(tokens=tokens, cached_tokens=cached):
                assert 0 <= cached <= tokens
            case CertaintyUpdated() | KvSplitChanged() | Offloaded() | Restored():
                pass
            case EngineRestarted(waited_s=waited_s):
                assert waited_s >= 0
            case _:
                raise AssertionError(f"a driver tells no {type(event).__name__}")
    return nodes


def nodes_of(tree: Tree, spec: Request) -> dict[NodeId, Seen]:
    """What a follower should have seen of `tree`."""
    found = {}
    for node in tree.nodes.values():
        if node.id == ROOT:
            continue
        seen = Seen(node.parent, node.depth, node.index, node.seed, str(node.status))
        if (segment := node.segment) is not None:
            seen.token_ids, seen.logprobs = segment.token_ids, segment.logprobs
            seen.text, seen.steps, seen.finish = segment.text, segment.steps, str(segment.finish)
        if node.scores is not None:
            seen.scores = node.scores
            seen.score = aggregate(tree.path_scores(node.id), spec.aggregate)
        found[node.id] = seen
    return found


def kinds(events: Sequence[Event]) -> list[str]:
    """Names of the events that are stored, repeats in a row told once."""
    names = [type(event).__name__ for event in events if not isinstance(event, Progress)]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


async def drive_alone(engines: Engines, spec: Request) -> Story:
    """A run that leaves nothing behind."""
    story = await drive(engines, spec)
    await assert_nothing_left(engines)
    return story


async def drive_alike(engines: Engines, spec: Request) -> Story:
    """A run whose outcome is that of undisturbed engines, and which leaves nothing behind."""
    expected = await drive(sim_engines(), spec)
    story = await drive_alone(engines, spec)
    assert story.outcome == expected.outcome
    return story
