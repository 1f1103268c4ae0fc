"""PUCT, apportionment and priors by hand; options of strategies; users' programs."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from flashedge.api.specs import ModelName
from flashedge.certainty.measures import CONSISTENCY, pick_settled_answer
from flashedge.certainty.policies import Rule
from flashedge.errors import ConfigError, NotFound, RequestError
from flashedge.models.registry import split_name
from flashedge.runtime.request import strategies
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.aggregates import softmax
from flashedge.search.base import Expand, Generated, Probe, ProbeResult, Result
from flashedge.search.level import apportion
from flashedge.search.strategies.beam import Rebase, VaryingGranularity
from flashedge.search.strategies.mcts import Mcts, compute_priors, compute_puct
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.tree import NodeStatus, Tree
from flashedge.types import FinishReason, Limits, NodeId, Problem, Segment
from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.runtime_rig import BEAM, drive, sim_engines
from tests.support.search_rig import make_segment


def test_puct_by_hand() -> None:
    assert compute_puct(0.5, 0.25, visits=0, parent_visits=4, c=1.0) == pytest.approx(1.0)
    assert compute_puct(0.5, 0.25, visits=3, parent_visits=4, c=2.0) == pytest.approx(0.75)
    assert compute_puct(0.5, 0.25, visits=3, parent_visits=0, c=2.0) == 0.5
    assert compute_puct(0.5, 0.25, visits=1, parent_visits=9, c=0.0) == 0.5


def test_priors() -> None:
    def segment(*logprobs: float) -> Segment:
        made = make_segment("a", tokens=(1,) * len(logprobs), finish=FinishReason.BOUNDARY)
        return replace(made, logprobs=logprobs)

    even = compute_priors([segment(-1.0), segment(-1.0, -1.0, -1.0)])
    assert even == pytest.approx((0.5, 0.5)), "length does not count"
    likely = compute_priors([segment(0.0, -2.0), segment(-2.0, -2.0)])
    assert likely == pytest.approx((0.731059, 0.268941), abs=1e-6)  # e^-1 : e^-2


def test_apportion() -> None:
    assert apportion([1, 1, 2], 8) == (2, 2, 4)
    assert apportion([0.5, 0.3, 0.2], 4) == (2, 1, 1)
    assert apportion([1, 1, 1], 2) == (1, 1, 0)
    assert apportion([0, 0], 3) == (2, 1)
    assert apportion([9, 1, 0], 5, least=1) == (3, 1, 1)
    with pytest.raises(ValueError, match="split"):
        apportion([1, 1], 1, least=1)


def test_softmax() -> None:
    assert softmax([0.0, 0.0], 1.0) == (0.5, 0.5)
    assert softmax([1.0, 0.0], 1.0)[0] == pytest.approx(0.731059, abs=1e-6)
    assert softmax([1.0, 0.0], 0.001) == (1.0, 0.0)


def spec(strategy: str, **fields: Any) -> Request:
    return replace(BEAM, strategy=strategy, **fields)


def test_options_reach_their_search() -> None:
    mcts = build_search(spec("mcts", options={"c": 2, "prior": "uniform"}))
    assert (type(mcts), mcts.c, mcts.prior, mcts.n) == (Mcts, 2.0, "uniform", 8)
    rebase = build_search(spec("rebase", options={"temperature": 0.5}))
    assert (type(rebase), rebase.temperature) == (Rebase, 0.5)
    varying = build_search(spec("varying_granularity"))
    assert isinstance(varying, VaryingGranularity)
    assert [varying.limit_step(depth) for depth in range(5)] == [64, 64, 64, 2048, 2048]
    chain = build_search(spec("probed_cot", n=1, options={"window": 4, "beside": False}))
    found = type(chain), chain.window, chain.beside, chain.policy
    assert found == (ProbedCot, 4, False, None)
    with pytest.raises(RequestError, match="one chain"):
        build_search(spec("probed_cot", n=2))


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("beam", {"c": 1.0}),
        ("mcts", {"c": "1"}),
        ("mcts", {"c": float("nan")}),
        ("mcts", {"c": True}),
        ("mcts", {"prior": "mine"}),
        ("rebase", {"temperature": 0}),
        ("mcts", {"parallel": 0}),
        ("mcts", {"parallel": 2.5}),
        ("mcts", {"parallel": 10**400}),
        ("mcts", {"take": "last"}),
        ("mcts", {"futile": 1.5}),
        ("mcts", {"negative_exit": 1}),
        ("mcts", {"selective_exit": True}),
        ("probed_cot", {"window": 0}),
        ("probed_cot", {"beside": 1}),
        ("probed_cot", {"suffix": ""}),
        ("probed_cot", {"tv_epsilon": 1e-9}),
    ],
)
def test_wrong_options_are_refused(strategy: str, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        build_search(spec(strategy, n=1, options=options))
    assert error.value.param == "options"


@pytest.mark.parametrize(
    ("texts", "stops", "answer"),
    [
        (["5}", "5}", "5}"], "certainty", "5"),
        (["5}", "5} Wait, let me check", "5}", "5}"], "certainty", "5"),
        (["5}", "5}", "5} Wait, let me check"], None, "5"),
        (["4}", "5}", "5}", "5}. Hmm"], None, "5"),
        (["5}. Or \\boxed{6}", "5} dollars", "5}"], "certainty", "5"),
    ],
)
def test_a_probe_in_doubt_neither_counts_nor_disagrees(
    texts: list[str], stops: str | None, answer: str
) -> None:
    rule = Rule(policy="every_step", detect=1, thresholds=((CONSISTENCY, 1.0),))
    search = ProbedCot(probe_tokens=1, beside=False, policy=rule)
    state, commands = search.start(Problem.from_text("?"), 0, Limits(max_path_tokens=100))
    work = deque(commands)
    left = deque(texts)
    result: Result
    while left or any(isinstance(one, Probe) for one in work):
        match work.popleft():
            case Expand(children=(child,)):
                segment = make_segment("a", tokens=(1,), finish=FinishReason.STEP_LIMIT)
                result = Generated(node=child.node, segment=segment)
            case Probe(node=node):
                result = ProbeResult(node=node, text=left.popleft())
            case _:
                raise AssertionError("the chain ends before its last probe")
        state, new = search.tell(state, result)
        work += new
    assert state.cut_by == stops
    assert pick_settled_answer(state.answers, 3) == answer


def test_latest_is_no_search() -> None:
    assert ModelName.parse("Bundled:latest") == ModelName(pair="Bundled", search=None)
    name = ModelName.parse("Bundled:latest:beam-4")
    assert (name.pair, name.search) == ("Bundled", {"strategy": "beam", "n": 4})
    assert name.write("bundled") == "bundled:beam-4"
    assert ModelName.parse("Bundled:LATEST").pair == "Bundled"
    assert split_name("mine:latest-2") == ("mine", "latest-2"), "which is another name"


@pytest.mark.parametrize("name", ["bundled:beem-8", "bundled:", "bundled:beam-x"])
def test_a_model_name_with_an_unknown_strategy_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match="no model") as error:
        ModelName.parse(name)
    assert error.value.param == "model"
    assert name != "bundled:beem-8" or error.value.hint == "did you mean 'beam'?"


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(RequestError, match="must be a number in"):
        spec("beam", deadline_s=10**400)


class Wide:
    def __init__(self, *, greed: int = 1, point: object = None) -> None:
        self.greed = greed

    def execute(self, tree: Tree, paths: Sequence[NodeId], width: int) -> Mapping[NodeId, int]:
        return dict.fromkeys(paths, self.greed)

    def update_certainindex(self, tree: Tree, finished: Sequence[NodeId]) -> float | None:
        return 1.0 if len(finished) >= 2 else None


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [
        EntryPoint("wide", f"{__name__}:Wide", strategies.GROUP),
        EntryPoint("lost", "no_such_package:Thing", strategies.GROUP),
    ]
    monkeypatch.setattr(strategies, "entry_points", lambda group: points)
    strategies.find_user_programs.cache_clear()
    yield
    strategies.find_user_programs.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_a_program_is_found_by_name_and_driven() -> None:
    story = await drive(sim_engines(), spec("wide", n=4))
    nodes = story.outcome.tree.nodes.values()
    assert sum(node.status is NodeStatus.COMPLETE for node in nodes) == 4
    assert story.outcome.history[-1].measures["program"] == 1.0
    exits = ExitOptions(policy="every_step", detect=1, thresholds={"program": 0.9})
    options = {"point": "any name may be an option"}
    stopped = await drive(sim_engines(), spec("wide", n=8, early_exit=exits, options=options))
    assert stopped.outcome.cut_by == "certainty"
    assert stopped.outcome.history[-1].progress < 8


@pytest.mark.usefixtures("installed")
async def test_a_program_may_end_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wide, "execute", lambda *_: {})
    story = await drive(sim_engines(), spec("wide", n=4))
    assert {n.depth for n in story.outcome.tree.nodes.values()} == {0, 1}
    assert story.outcome.finish.choice != 0
    assert story.outcome.cut_by is None


@pytest.mark.usefixtures("installed")
async def test_a_program_that_asks_for_too_much_is_refused() -> None:
    with pytest.raises(RequestError, match="asked for"):
        await drive(sim_engines(), spec("wide", n=4, options={"greed": 2}))
    with pytest.raises(RequestError, match="can't be made"):
        build_search(spec("wide", options={"greedy": 2}))


@pytest.mark.usefixtures("installed")
def test_a_missing_or_broken_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no_such_package"):
        build_search(spec("lost"))
    monkeypatch.setattr(EntryPoint, "load", lambda point: 1 / 0)
    with pytest.raises(ConfigError, match="division by zero"):
        build_search(spec("wide"))
    with pytest.raises(NotFound, match="wide"):
        build_search(spec("wode"))
