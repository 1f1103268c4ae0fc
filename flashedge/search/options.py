"""The options that single strategies have: names, kinds and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flashedge.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOption:
    kind: type
    """int, float, bool or str."""
    about: str
    low: float = 0
    """Least number."""
    high: float = math.inf
    """Largest number."""
    choices: tuple[str, ...] = ()
    """Values of a str; empty allows any non-empty text."""

    def check(self, name: str, value: Any) -> Any:
        """Return the value, a float if the kind is. Raises RequestError if it doesn't fit."""
        fits = False
        if self.kind is bool:
            fits = isinstance(value, bool)
        elif self.kind is str:
            known = not self.choices or value in self.choices
            fits = isinstance(value, str) and bool(value) and known
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = self.kind is float or isinstance(value, int)
            fits = whole and math.isfinite(value) and self.low <= value <= self.high
        if not fits:
            raise RequestError(
                f"option {name} is {value!r}; it must be {self._describe()}", param="options"
            )
        return float(value) if self.kind is float else value

    def _describe(self) -> str:
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


def _bool(about: str) -> StrategyOption:
    return StrategyOption(kind=bool, about=about)


OPTIONS: Mapping[str, Mapping[str, StrategyOption]] = MappingProxyType(
    {
        "varying_granularity": {
            "short_steps": _int("number of short steps at the start", 0, 10_000),
            "short_step_tokens": _int("longest short step", 1),
            "long_step_tokens": _int("longest step after them", 1),
        },
        "rebase": {
            "temperature": _float("temperature of the softmax of rewards", 0.001, 1000.0),
            "width": _int("paths per tree; 0 puts all in one tree", 0),
        },
        "mcts": {
            "c": _float("weight of exploration in PUCT", 0.0, 1000.0),
            "prior": StrategyOption(
                kind=str, about="prior of a child", choices=("logprob", "uniform")
            ),
            "parallel": _int("rollouts in flight at once", 1, 1024),
            "boost": _bool("have more rollouts in flight where that gets more done"),
            "take": StrategyOption(
                kind=str,
                about="order in which results are taken; by arrival the tree is not reproducible",
                choices=("launch", "arrival"),
            ),
            "positive_exit": _bool("end once a finished path has the reward `accept`"),
            "accept": _float("reward at which the positive exit ends the search", 0.0, 1.0),
            "negative_exit": _bool("end once every leaf has less than `futile`"),
            "selective_exit": _bool(
                "the same without the branches whose first step has less than `weak_step`"
            ),
            "cut_rollouts": _bool("cancel a rollout whose path has less than `futile`"),
            "futile": _float("reward under which a leaf is given up", 0.0, 1.0),
            "weak_step": _float("score under which a first step counts as weak", 0.0, 1.0),
        },
        "probed_cot": {
            "probe_tokens": _int("tokens between two probes; 0: no probes", 0),
            "suffix": StrategyOption(
                kind=str, about="text that a probe appends to ask for the answer"
            ),
            "max_probe_tokens": _int("longest answer to a probe", 1, 4096),
            "window": _int("probes over which consistency is measured", 1, 10_000),
            "give_up_after": _int("probes after which an unsettled chain ends; 0: never", 0),
            "give_up_below": _float(
                "a chain is unsettled while no answer has this share", 0.0, 1.0
            ),
            "beside": _bool("the chain continues while a probe runs"),
            "tv_epsilon": _float(
                "epsilon of the stopping rule of App. E; 0: not measured", 0, 0.99
            ),
            "tv_delta": _float("delta of that rule", 1e-9, 0.999),
        },
    }
)


def check_options(strategy: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a strategy with their values checked. Raises RequestError."""
    known = OPTIONS.get(strategy, {})
    for name in given:
        if name not in known:
            hint = f"its options are {', '.join(known)}" if known else "it has no options"
            raise RequestError(
                f"strategy {strategy} has no option {name!r}", hint=hint, param="options"
            )
    return {name: known[name].check(name, value) for name, value in given.items()}
