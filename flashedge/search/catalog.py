"""The strategies by name, with their options, and the parser of strategy names."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

from flashedge.certainty.policies import Policy, find_lead
from flashedge.certainty.token_confidence import MEANS
from flashedge.errors import NotFound, RequestError
from flashedge.search.mcts.exits import Exits
from flashedge.search.strategies.beam import (
    BeamSearch,
    Dvts,
    DynamicBranching,
    Rebase,
    VaryingGranularity,
)
from flashedge.search.strategies.best_of_n import BestOfN, SelfConsistency
from flashedge.search.strategies.counted_vote import CountedBestOfN, CountedSelfConsistency
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.strategies.program import ProgramSearch, ReasoningProgram
from flashedge.search.voting import Search
from flashedge.types import STRATEGIES, Judges

_STRATEGIES: Mapping[str, type[Search[Any]]] = {
    "beam": BeamSearch,
    "best_of_n": BestOfN,
    "self_consistency": SelfConsistency,
    "deepconf": DeepConf,
    "dvts": Dvts,
    "dynamic_branching": DynamicBranching,
    "varying_granularity": VaryingGranularity,
    "rebase": Rebase,
    "mcts": Mcts,
    "probed_cot": ProbedCot,
}
_COUNTED = {"best_of_n": CountedBestOfN, "self_consistency": CountedSelfConsistency}
"""The strategies that draw whole answers, as searches that stop by the lead of their vote."""
WITHOUT_STEP_SCORES = (*_COUNTED, "deepconf", "probed_cot")
"""Strategies that need no scores of steps, so that verifiers of whole answers are enough."""
WITHOUT_SCORES = tuple(name for name, kind in _STRATEGIES.items() if not kind.scores_levels)
"""Strategies that need no scores at all."""
T = TypeVar("T")
Programs = Mapping[str, Callable[..., ReasoningProgram]]
"""The user's own strategies by name. Each takes the run's options as keyword arguments."""
_SUFFIXED = re.compile(r"(.+)-(\d{1,9})", re.ASCII)


def parse_strategy(text: str, programs: Collection[str] = ()) -> tuple[str, int | None]:
    """Parse `"beam-16"` to ("beam", 16), and `"beam"` to ("beam", None): the name and n. Hyphens
    may replace underscores (best-of-n-16). programs: names of the user's own strategies. The range
    of n is not checked. Raises NotFound, with the nearest name, for an unknown strategy."""
    suffixed = _SUFFIXED.fullmatch(text)
    name, n = (suffixed[1], int(suffixed[2])) if suffixed else (text, None)
    return _check_name(name.replace("-", "_"), text, programs), n


def make_search(
    strategy: str,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    policy: Policy | None = None,
    programs: Programs = MappingProxyType({}),
    judges: Judges = "steps",
    **common: int | str,
) -> Search[Any]:
    """Create the search of a strategy. options: see `_OPTIONS`. programs: the user's own
    strategies, which can't replace a built-in one. judges: what one score of the verifier is about.
    common: n, branching, max_step_tokens, max_steps, aggregate and selection, of which each search
    takes those that are fields of it. Raises NotFound for an unknown strategy, and RequestError for
    options, a policy or a verifier that do not suit the strategy."""
    name = _check_name(strategy, strategy, programs)
    check_judges(name, judges)
    counts = find_lead(policy) is not None
    if counts and name not in _COUNTED:
        raise RequestError(
            f"strategy {name!r} can't stop by the lead of a vote: its vote is not by counts of"
            " whole answers",
            hint=f"use {' or '.join(_COUNTED)}, or another policy",
            param="early_exit",
        )
    given: dict[str, Any] = {**common, "policy": policy, "judges": judges}
    if name in STRATEGIES:
        given |= _check_options(name, options)
        if name == "mcts":
            given["exits"] = _build(Exits, given)
        return _build(_COUNTED[name] if counts else _STRATEGIES[name], given)
    try:
        program = programs[name](**options)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"strategy {name!r} can't be made with {dict(options)}: {error}", param="options"
        ) from error
    return _build(ProgramSearch, {**given, "program": program, "name": name})


def _build(kind: type[T], given: Mapping[str, Any]) -> T:
    """Create a dataclass from the given values that are fields of it."""
    names = {field.name for field in dataclasses.fields(cast(Any, kind))}
    return kind(**{name: given[name] for name in names & given.keys()})


def check_judges(strategy: str, judges: Judges) -> None:
    """Raises RequestError if the strategy needs scores that the verifier does not give."""
    if judges == "nothing" and strategy not in WITHOUT_SCORES:
        raise RequestError(
            f"strategy {strategy!r} needs scores, and the pair has no verifier",
            hint=f"use {' or '.join(WITHOUT_SCORES)}, or a pair with a verifier",
            param="strategy",
        )
    if judges == "answers" and strategy not in WITHOUT_STEP_SCORES:
        raise RequestError(
            f"strategy {strategy!r} needs scores of single steps, and the pair's verifier judges"
            " whole answers",
            hint=f"use {' or '.join(WITHOUT_STEP_SCORES)}, or a pair with a process reward model",
            param="strategy",
        )


def _check_name(name: str, given: str, programs: Collection[str]) -> str:
    if name not in STRATEGIES and name not in programs:
        known = [*STRATEGIES, *sorted(programs)]
        close = difflib.get_close_matches(name.lower(), known, n=1)
        raise NotFound(
            f"no strategy {given!r}; known: {', '.join(known)}",
            hint=f"did you mean {close[0]!r}?" if close else None,
            param="strategy",
        )
    return name


@dataclass(frozen=True, slots=True)
class _Option:
    kind: type
    """bool, str, int or float."""
    low: float = 0
    high: float = 0
    """Bounds of a number, both included."""
    choices: tuple[str, ...] = ()
    """The texts that are allowed. Empty allows all but the empty text."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value, as a float if that is the kind. Raises RequestError."""
        if self.kind is bool:
            fits, what = isinstance(value, bool), "true or false"
        elif self.kind is str:
            fits = isinstance(value, str) and value in (self.choices or (value,)) and value != ""
            what = f"one of {', '.join(self.choices)}" if self.choices else "a text"
        else:
            kinds = int if self.kind is int else int | float
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            fits = is_number and self.low <= value <= self.high
            kind = "an integer" if self.kind is int else "a number"
            what = f"{kind} in [{self.low:g}, {self.high:g}]"
        if not fits:
            raise RequestError(f"option {name} is {value!r}; it must be {what}", param="options")
        return float(value) if self.kind is float else value


_MANY = 1 << 20
_SHARE = _Option(float, 0.0, 1.0)
_OPTIONS: Mapping[str, Mapping[str, _Option]] = {
    "varying_granularity": {
        "short_steps": _Option(int, 0, 10_000),
        "short_step_tokens": _Option(int, 1, _MANY),
        "long_step_tokens": _Option(int, 1, _MANY),
    },
    "deepconf": {
        "warm_up": _Option(int, 1, _MANY),
        "keep": _Option(float, 0.001, 1.0),
        "window": _Option(int, 1, _MANY),
        "by": _Option(str, choices=MEANS),
        "stops": _Option(bool),
    },
    "rebase": {"temperature": _Option(float, 0.001, 1000.0), "width": _Option(int, 0, _MANY)},
    "mcts": {
        "c": _Option(float, 0.0, 1000.0),
        "prior": _Option(str, choices=("logprob", "uniform")),
        "parallel": _Option(int, 1, 1024),
        "boost": _Option(bool),  # whether the runtime sends allowances
        "take": _Option(str, choices=("launch", "arrival")),
        "positive_exit": _Option(bool),
        "accept": _SHARE,
        "negative_exit": _Option(bool),
        "cut_rollouts": _Option(bool),
        "futile": _SHARE,
    },
    "probed_cot": {
        "probe_tokens": _Option(int, 0, _MANY),
        "suffix": _Option(str),
        "max_probe_tokens": _Option(int, 1, 4096),
        "tail_tokens": _Option(int, 0, 4096),
        "window": _Option(int, 1, 10_000),
        "give_up_after": _Option(int, 0, _MANY),
        "give_up_below": _SHARE,
        "beside": _Option(bool),
        "tv_epsilon": _Option(float, 0, 0.99),
        "tv_delta": _Option(float, 1e-9, 0.999),
    },
}
"""By strategy and option. The fields of the strategies' classes say what the options mean. The
upper bounds of counts are far above useful values, and only catch slips."""


def _check_options(strategy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with checked values. Raises RequestError."""
    known = _OPTIONS.get(strategy, {})
    for name in given:
        if name not in known:
            hint = f"its options are {', '.join(known)}" if known else "it has no options"
            raise RequestError(
                f"strategy {strategy} has no option {name!r}", hint=hint, param="options"
            )
    return {name: known[name].check(name, value) for name, value in given.items()}
