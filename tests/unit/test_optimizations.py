"""Every switch is documented, can be set by the user, and changes a run's cost but not its tree."""

import ast
import inspect
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge import optimizations
from flashedge.config import Config, load_config
from flashedge.optimizations import FEATURES, SWITCHES, Features, Optimizations
from flashedge.runtime.drive.engines import build_engines
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.live import write_features
from scripts.lab.benchmark.simulate import Bench, Question, build_bench
from scripts.lab.benchmark.virtual_run import VirtualRun
from tests.support.runtime_rig import BEAM
from tests.support.service_rig import Rig


def config_of(home: Path, **settings: object) -> Config:
    return load_config(settings, {"FLASHEDGE_HOME": str(home)})


def test_every_switch_says_what_it_does_and_where_it_comes_from() -> None:
    tree = ast.parse(inspect.getsource(optimizations))
    documented = {}
    for body in (n.body for n in tree.body if isinstance(n, ast.ClassDef)):
        for pair in pairwise(body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(doc)):
                    documented[name] = str(doc)
    assert set(documented) == {*FEATURES, *SWITCHES}
    assert set(SWITCHES) - set(FEATURES) == {"suffix_scoring"}, "what only baselines go without"
    for name, doc in documented.items():
        assert "Ref: arXiv" in doc or "Ours." in doc or doc == "vLLM's.", name


def choose(*, separate_processors: bool = False, **features: Any) -> Optimizations:
    return Optimizations.from_features(
        Features(**features), separate_processors=separate_processors
    )


@pytest.mark.parametrize("switch", sorted(set(SWITCHES) & set(FEATURES)))
@pytest.mark.parametrize("on", [False, True])
def test_a_feature_sets_its_switch_and_no_other(switch: str, on: bool) -> None:
    assert choose() == Optimizations()
    assert choose(**{switch: on}) == replace(Optimizations(), **{switch: on})


def test_early_scores_are_on_where_they_pay_unless_lookahead_needs_whole_levels() -> None:
    for features, on in (
        ({}, True),
        ({"early_scores": False}, False),
        ({"lookahead": True}, False),
        ({"lookahead": True, "early_scores": True}, False),
    ):
        assert choose(separate_processors=True, **features).early_scores is on


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_setting_of_some_switches_sets_them_again(tmp_path: Path, switch: str) -> None:
    only = Optimizations.only(switch)
    config = config_of(tmp_path, features=write_features(only))
    again = Optimizations.from_features(config.features, separate_processors=True)
    assert again == replace(only, suffix_scoring=True)


async def test_a_baseline_run_works_with_the_stock_twins(tmp_path: Path) -> None:
    rig = Rig(tmp_path, features="kv_split=off")  # else the engines stand behind counters
    stock: Any = object()
    rig.pair.stock_generator = rig.pair.stock_verifier = stock
    await rig.service.start()
    for baseline in (False, True):
        run = rig.service.submit(replace(BEAM, baseline=baseline))
        engines = rig.engines_for(run)
        assert (engines.optimizations == Optimizations.none()) is baseline
        assert (engines.verifier is stock) is baseline
        run.cancel("seen")
    await rig.service.stop()


@pytest.mark.parametrize(
    ("switches", "generator", "verifier"),
    [
        ((), "stock_generator", "stock_verifier"),
        (("prefix_order", "kv_split"), "stock_generator", "stock_verifier"),
        (("speculation",), "generator", "stock_verifier"),
        (("speculation", "lookahead"), "generator", "stock_verifier"),
        (("suffix_scoring",), "generator", "verifier"),
        (("suffix_scoring", "speculation"), "generator", "verifier"),
    ],
)
def test_stock_twins_score_whole_paths(
    switches: tuple[str, ...], generator: str, verifier: str
) -> None:
    names = ("generator", "verifier", "stock_generator", "stock_verifier")
    twins: Any = SimpleNamespace(**{name: name for name in names})
    grader: Any = None
    engines = build_engines(Optimizations.only(*switches), twins, grader=grader)
    assert (engines.generator, engines.verifier) == (generator, verifier)


SHORT_OF_MEMORY = {"prefix_order", "kv_split", "offload"}
"""Switches that only matter where the paths of a level do not all fit."""


ELSEWHERE = {"joined_tokens"}
"""Tested apart, since they need real engines (`engine/test_driver_on_vllm.py`)."""


NEEDED = {"early_commit": {"early_scores": True}}
"""What a switch needs to change anything, apart from what is on by default."""


def bench_of(home: Path, n: int, workload: str = "aime") -> Bench:
    """A pair with little KV memory, whose generator often repeats itself in siblings."""
    asked = {"gpu": "rtx4090", "pair": "math-1.5b+skywork-1.5b", "workload": workload}
    question = Question(**asked, strategy="beam", n=n, problems=1, kv_bytes=230 << 20)
    found = build_bench(question, config_of(home))
    setup = replace(found.setup, common=0.5, limits=(1024, 1024))
    return replace(found, setup=setup, search=replace(found.search, max_path_tokens=700))


@pytest.mark.parametrize("suffix_scoring", [True, False])
def test_lookahead_with_either_verifier(tmp_path: Path, suffix_scoring: bool) -> None:
    off = replace(Optimizations.only("speculation"), suffix_scoring=suffix_scoring)
    runs = [run_with(bench_of(tmp_path, n=8), replace(off, lookahead=on)) for on in (False, True)]
    assert runs[0].tree == runs[1].tree
    assert [run.speculation.scored_steps > 0 for run in runs] == [False, True]
    assert [run.verifier_cached_tokens > 0 for run in runs] == [suffix_scoring] * 2


def run_with(bench: Bench, optimizations: Optimizations) -> VirtualRun:
    return bench.run(Rung(name="", about="", optimizations=optimizations), bench.rows[0])


@pytest.mark.parametrize("switch", [one for one in SWITCHES if one not in ELSEWHERE])
def test_every_switch_changes_the_cost_and_never_the_tree(tmp_path: Path, switch: str) -> None:
    workload = "gsm8k" if switch == "token_drafts" else "aime"  # made-up words are not drafted
    bench = bench_of(tmp_path, n=64 if switch in SHORT_OF_MEMORY else 8, workload=workload)
    on = Optimizations(**{switch: True, **NEEDED.get(switch, {})})
    with_it, without = (run_with(bench, replace(on, **{switch: value})) for value in (True, False))
    assert with_it.tree == without.tree
    assert with_it != without


@pytest.mark.parametrize(
    ("strategy", "n"), [("beam", 8), ("mcts", 8), ("beam", 64), ("best_of_n", 64)]
)
def test_drafted_tokens_save_steps_and_change_no_tree(
    tmp_path: Path, strategy: str, n: int
) -> None:
    """With next steps drafted and all other switches, and n = 64 short of memory."""
    bench = bench_of(tmp_path, n=n, workload="gsm8k")
    bench = replace(bench, search=replace(bench.search, strategy=strategy))
    runs = [run_with(bench, replace(Optimizations(), token_drafts=on)) for on in (True, False)]
    assert runs[0].tree == runs[1].tree
    drafted, plain = (run.token_drafts for run in runs)
    assert not any(plain.values())
    assert (
        drafted["drafted_tokens"] >= drafted["accepted_tokens"] > runs[0].tree.committed_tokens / 8
    )
    assert runs[0].generate_s < runs[1].generate_s
    assert all((run.preemptions > 0) == (n == 64) for run in runs)
