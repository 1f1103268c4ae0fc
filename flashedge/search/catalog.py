"""Search algorithms by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from flashedge.certainty.policies import Policy
from flashedge.errors import NotFound, RequestError
from flashedge.search.base import Search
from flashedge.search.options import check_options
from flashedge.search.strategies.beam import BeamSearch
from flashedge.search.strategies.best_of_n import BestOfN
from flashedge.search.strategies.dvts import Dvts
from flashedge.search.strategies.dynamic_branching import DynamicBranching
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.strategies.program import ProgramSearch, ReasoningProgram
from flashedge.search.strategies.rebase import Rebase
from flashedge.search.strategies.self_consistency import SelfConsistency
from flashedge.search.strategies.varying_granularity import VaryingGranularity

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "beam": "step by step, the verifier keeps the best paths",
        "best_of_n": "n whole answers, the verifier weighs them",
        "self_consistency": "n whole answers, the most frequent wins; no verifier",
        "dvts": "n / branching subtrees, in each the best path goes on",
        "dynamic_branching": "a beam whose paths branch in proportion to their scores",
        "varying_granularity": "a beam of short steps first and long ones later",
        "rebase": "the softmax of rewards allots the width to all paths",
        "mcts": "n rollouts of Monte Carlo tree search, one after the other",
        "probed_cot": "one chain, asked for its answer as it goes; ends when that is settled",
    }
)
_STEPWISE: Mapping[str, Callable[..., Search[Any]]] = MappingProxyType(
    {
        "beam": BeamSearch,
        "dvts": Dvts,
        "dynamic_branching": DynamicBranching,
        "varying_granularity": VaryingGranularity,
        "rebase": Rebase,
        "mcts": Mcts,
    }
)
_WHOLE: Mapping[str, Callable[..., Search[Any]]] = MappingProxyType(
    {"best_of_n": BestOfN, "self_consistency": SelfConsistency}
)
Programs = Mapping[str, Callable[..., ReasoningProgram]]
_SUFFIXED = re.compile(r"(.+)-(\d{1,9})", re.ASCII)


def parse_strategy(text: str, programs: Collection[str] = ()) -> tuple[str, int | None]:
    """`"beam-16"` -> ("beam", 16); `"beam"` -> ("beam", None). Raises NotFound.

    Hyphens may stand for underscores (best-of-n-16). `programs` are names of users' own programs.
    The range of n is not checked here.
    """
    suffixed = _SUFFIXED.fullmatch(text)
    name, n = (suffixed[1], int(suffixed[2])) if suffixed else (text, None)
    return _check_name(name.replace("-", "_"), text, programs), n


def make_search(
    strategy: str,
    *,
    n: int,
    branching: int,
    aggregate: str,
    selection: str,
    max_step_tokens: int,
    max_steps: int,
    options: Mapping[str, Any] = MappingProxyType({}),
    policy: Policy | None = None,
    programs: Programs = MappingProxyType({}),
) -> Search[Any]:
    """The search of that name; an algorithm takes what it knows.

    options: of that strategy alone (see `options`); programs: users' own, by name, which can't
    take the name of one of ours. Raises NotFound, RequestError.
    """
    name = _check_name(strategy, strategy, programs)
    voting: dict[str, Any] = {
        "n": n,
        "aggregate": aggregate,
        "selection": selection,
        "policy": policy,
    }
    stepping: dict[str, Any] = {
        "branching": branching,
        "max_step_tokens": max_step_tokens,
        "max_steps": max_steps,
    }
    if name not in STRATEGIES:
        program = _made(name, programs[name], options)
        return ProgramSearch(program=program, label=name, **voting, **stepping)
    checked = check_options(name, options)
    if name == "probed_cot":
        return ProbedCot(policy=policy, **checked)
    if name in _WHOLE:
        return _WHOLE[name](**voting, **checked)
    return _STEPWISE[name](**voting, **stepping, **checked)


def _made(
    name: str, program: Callable[..., ReasoningProgram], options: Mapping[str, Any]
) -> ReasoningProgram:
    try:
        return program(**options)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"strategy {name!r} can't be made with {dict(options)}: {error}", param="options"
        ) from error


def _check_name(name: str, given: str, programs: Collection[str] = ()) -> str:
    if name not in STRATEGIES and name not in programs:
        known = [*STRATEGIES, *sorted(programs)]
        close = difflib.get_close_matches(name.lower(), known, n=1)
        raise NotFound(
            f"no strategy {given!r}; known: {', '.join(known)}",
            hint=f"did you mean {close[0]!r}?" if close else None,
            param="strategy",
        )
    return name
