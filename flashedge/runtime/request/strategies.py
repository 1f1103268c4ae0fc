"""Builds the search of a request, with the strategies that installed packages add."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from flashedge.errors import ConfigError, RequestError
from flashedge.runtime.request.early_exit import (
    VOTES,
    ExitOptions,
    build_exit_policy,
    build_exit_rule,
)
from flashedge.runtime.request.validation import Request
from flashedge.search.catalog import WITHOUT_SCORES, WITHOUT_STEP_SCORES, make_search
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.strategies.program import ReasoningProgram
from flashedge.search.voting import Search
from flashedge.types import ANSWER, BLANK_LINE, ENTROPY, STEPS, STRATEGIES, Judges

GROUP = "flashedge.strategies"
"""The entry points under which packages register their programs."""
REBASE_TREE = 16
"""Paths of one REBASE tree in a run that grows several. See `find_watched_options`."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "self_consistency": {"selection": "majority"},
    "mcts": {"selection": "best", "aggregate": "prod"},
    "probed_cot": {"n": 1, "early_exit": ExitOptions()},
}


def list_strategies(judges: Judges) -> tuple[str, ...]:
    """List the strategies that a verifier of this kind can serve. The user's programs need scores
    of steps."""
    if judges == "steps":
        return (*STRATEGIES, *find_user_programs())
    return WITHOUT_STEP_SCORES if judges == "answers" else WITHOUT_SCORES


def find_usual_strategy(judges: Judges, judge: str = STEPS) -> str:
    """Find the strategy of a request that names none. judges: see `build_search`. judge: the
    request's."""
    if judges == "nothing":
        return "self_consistency"
    return "beam" if judges == "steps" and judge == STEPS else "best_of_n"


def find_defaults(strategy: str) -> Mapping[str, Any]:
    """Find the defaults that this strategy has instead of those in Request. Ref: arXiv 2412.20993
    App. F (majority for SC, best-of-n for MCTS); 2604.00510 §3 (cumulative product of rewards)."""
    return _DEFAULTS.get(strategy, {})


def stops_by_votes(strategy: str, selection: str | None, answers: str | None) -> bool:
    """Whether a request that does not set `early_exit` may end early. A majority vote and
    `deepconf` may, except over whole texts, which hardly ever agree. answers: None for the
    default."""
    is_vote = strategy == "deepconf" or (strategy in VOTES and selection == "majority")
    return is_vote and answers != "whole"


def find_watched_options(strategy: str, n: object) -> Mapping[str, Any]:
    """Find the default options of runs with early exit, and of those that calibrate it.
    A REBASE tree gives all of its answers at its end, and the paper checks first after 16 of them.
    A run of more paths therefore grows several trees of 16. Ref: arXiv 2412.20993 Tables 1, 3."""
    several = strategy == "rebase" and isinstance(n, int) and n > REBASE_TREE
    return {"width": REBASE_TREE} if several else {}


def count_paths_at_once(request: Request) -> int:
    """Count the paths that the search draws at once, at most. A vote with early exit draws its
    answers in groups. What boosting adds takes only free room, and is not counted."""
    if request.strategy == "mcts":
        return min(request.n, int(request.options.get("parallel", 1))) * request.branching
    if request.early_exit is None or request.strategy not in WITHOUT_STEP_SCORES:
        return request.n
    group = build_exit_rule(request.early_exit, request.strategy).find_largest_group(request.n)
    search = build_search(request)
    return max(group, search.count_warm_up()) if isinstance(search, DeepConf) else group


def build_search(request: Request, judges: Judges = "steps") -> Search[Any]:
    """Build the search. judges: what one score of the pair's verifier is about. Raises NotFound,
    RequestError, and ConfigError where a user's program can't be loaded."""
    strategy = request.strategy
    if strategy == "probed_cot" and request.n != 1:
        raise RequestError(
            f"n is {request.n}; probed_cot is one chain", hint="leave n out", param="n"
        )
    if request.step_rule == ENTROPY and strategy in WITHOUT_STEP_SCORES:
        raise RequestError(
            f"strategy {strategy!r} generates whole answers, so it has no steps that the rule"
            f" {ENTROPY!r} could end",
            hint=f"choose a strategy with steps, such as beam, or the step rule {BLANK_LINE}",
            param="step_rule",
        )
    if request.judge == ANSWER:
        if strategy not in WITHOUT_STEP_SCORES:
            raise RequestError(
                f"strategy {strategy!r} needs scores of single steps, but judge is {ANSWER!r}",
                hint=f"use {' or '.join(WITHOUT_STEP_SCORES)}, or set judge to {STEPS!r}",
                param="judge",
            )
        judges = "answers" if judges == "steps" else judges
    return make_search(
        strategy,
        n=request.n,
        branching=request.branching,
        max_step_tokens=request.max_step_tokens,
        max_steps=request.max_steps,
        aggregate=request.aggregate,
        selection=request.selection,
        options=request.options,
        policy=build_exit_policy(request.early_exit, strategy),
        programs=find_user_programs(),
        judges=judges,
    )


@cache
def find_user_programs() -> Mapping[str, Callable[..., ReasoningProgram]]:
    """Find the programs that installed packages register under `flashedge.strategies`. A program is
    loaded when a run uses it. See `search.strategies.program`."""
    return {point.name: partial(_build_program, point) for point in entry_points(group=GROUP)}


def _build_program(point: EntryPoint, /, **options: Any) -> ReasoningProgram:
    try:
        factory: Callable[..., ReasoningProgram] = point.load()
    except Exception as error:  # importing runs the package's code
        raise ConfigError(
            f"strategy {point.name!r} ({point.value}) can't be loaded: {error}",
            hint="repair or uninstall the package that registers it",
        ) from error
    return factory(**options)
