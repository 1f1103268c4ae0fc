"""What each strategy can be told beyond n and branching: names, kinds, ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flashedge.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOption:
    """kind: int, float, bool or str. Numbers lie in [low, high]; texts are one of `choices`, any
    non-empty text where there are none."""

    kind: type
    about: str
    low: float = 0
    high: float = math.inf
    choices: tuple[str, ...] = ()

    def checked(self, name: str, value: Any) -> Any:
        """Raises RequestError."""
        wanted, fits = self._wanted(), False
        if self.kind is bool:
            fits = isinstance(value, bool)
        elif self.kind is str:
            known = not self.choices or value in self.choices
            fits = isinstance(value, str) and bool(value) and known
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = self.kind is float or isinstance(value, int)
            fits = whole and math.isfinite(value) and self.low <= value <= self.high
        if not fits:
            raise RequestError(f"option {name} is {value!r}; it must be {wanted}", param="options")
        return float(value) if self.kind is float else value

    def _wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind in (int, float):
            kind = "an integer" if self.kind is int else "a number"
            return f"{kind} in [{self.low:g}, {self.high:g}]"
        return "true or false" if self.kind is bool else "a text"


def _int(about: str, low: int, high: int = 1 << 20) -> StrategyOption:
    return StrategyOption(kind=int, about=about, low=low, high=high)


def _float(about: str, low: float, high: float) -> StrategyOption:
    return StrategyOption(kind=float, about=about, low=low, high=high)


OPTIONS: Mapping[str, Mapping[str, StrategyOption]] = MappingProxyType(
    {
        "varying_granularity": {
            "short_steps": _int("steps that are short", 0, 10_000),
            "short_step_tokens": _int("longest of them", 1),
            "long_step_tokens": _int("longest of the others", 1),
        },
        "rebase": {
            "temperature": _float("of the softmax of rewards", 0.001, 1000.0),
            "width": _int("paths of one tree, 0: all", 0),
        },
        "mcts": {
            "c": _float("weight of exploration in PUCT", 0.0, 1000.0),
            "prior": StrategyOption(
                kind=str, about="prior of a child", choices=("logprob", "uniform")
            ),
        },
        "probed_cot": {
            "probe_tokens": _int("a probe after each so many tokens, 0: none", 0),
            "suffix": StrategyOption(kind=str, about="what a probe says"),
            "max_probe_tokens": _int("longest answer to a probe", 1, 4096),
            "window": _int("probes that C_k is taken over", 1, 10_000),
            "give_up_after": _int("probes after which an unsettled chain ends, 0: never", 0),
            "give_up_below": _float("share of one answer that is unsettled", 0.0, 1.0),
            "beside": StrategyOption(kind=bool, about="the chain goes on while a probe runs"),
            "tv_epsilon": _float("measure the rule of App. E with this epsilon, 0: don't", 0, 0.99),
            "tv_delta": _float("delta of that rule", 1e-9, 0.999),
        },
    }
)


def check_options(strategy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a strategy, checked. Raises RequestError."""
    known = OPTIONS.get(strategy, {})
    for name in given:
        if name not in known:
            said = f"it knows {', '.join(known)}" if known else "it has none"
            raise RequestError(
                f"strategy {strategy} has no option {name!r}", hint=said, param="options"
            )
    return {name: known[name].checked(name, value) for name, value in given.items()}
