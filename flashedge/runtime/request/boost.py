"""Which runs are boosted: by the request's option, and by the daemon's setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashedge.errors import Conflict, RequestError
from flashedge.runtime.request.spec import RunSpec

MCTS, OPTION = "mcts", "boost"
OFF, ASKED, ALL = "off", "asked", "all"
USUAL = {"parallel": 1, "take": "launch"}
"""Options of MCTS with the only values that a boosted run may have."""
BOOST_MODES = (OFF, ASKED, ALL)
"""off: no run is boosted; asked: those that ask for it; all: every MCTS run that does not refuse,
that does not name a fixed number of rollouts in parallel, and that is not deterministic."""


def is_boosted(spec: RunSpec) -> bool:
    """Whether a run whose request was resolved is boosted."""
    return asks_for_boost(spec.strategy, spec.options)


def asks_for_boost(strategy: object, options: Mapping[str, Any]) -> bool:
    return strategy == MCTS and bool(options.get(OPTION))


def check_continuable(spec: RunSpec, run_id: str) -> None:
    """Raises Conflict for a boosted run: a longer one would explore something else."""
    if is_boosted(spec):
        raise Conflict(
            f"run {run_id} was boosted, so a longer run would not begin as it did",
            hint="start it anew, or without boosting",
            param="continues",
        )


def resolve_boost(spec: RunSpec, mode: str) -> RunSpec:
    """The request with the daemon's decision in it, so that the run's record tells it.

    Raises RequestError for a run that asks for boosting beside what excludes it: a fixed number of
    rollouts, or results that are taken as they arrive, which no log could replay.
    """
    if spec.strategy != MCTS:
        return spec
    asked = spec.options.get(OPTION)
    excluded = [name for name, usual in USUAL.items() if spec.options.get(name, usual) != usual]
    if asked and excluded:
        raise RequestError(
            f"a boosted run has no {' and no '.join(excluded)} of its own",
            hint=f"leave out one of boost and {excluded[0]}",
            param="options",
        )
    may_be = not (excluded or spec.baseline or spec.deterministic)
    wants = bool(asked) or (asked is None and mode == ALL and may_be)
    is_on = wants and mode != OFF
    if asked is None and not is_on:
        return spec
    return replace(spec, options={**spec.options, OPTION: is_on})
