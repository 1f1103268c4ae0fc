"""Which runs are boosted: by the request's option, and by the daemon's setting."""

from __future__ import annotations

from dataclasses import replace

from flashedge.errors import RequestError
from flashedge.runtime.request.spec import RunSpec

MCTS, OPTION = "mcts", "boost"
OFF, ASKED, ALL = "off", "asked", "all"
BOOST_MODES = (OFF, ASKED, ALL)
"""off: no run is boosted; asked: those that ask for it; all: every MCTS run that does not refuse,
and that does not name a fixed number of rollouts in parallel."""


def is_boosted(spec: RunSpec) -> bool:
    return spec.strategy == MCTS and bool(spec.options.get(OPTION))


def resolve_boost(spec: RunSpec, mode: str) -> RunSpec:
    """The request with the daemon's decision in it, so that the run's record tells it.

    Raises RequestError for a run that asks for boosting and for a fixed number of rollouts.
    """
    if spec.strategy != MCTS:
        return spec
    asked = spec.options.get(OPTION)
    is_fixed = spec.options.get("parallel", 1) != 1
    if asked and is_fixed:
        raise RequestError(
            "a boosted run has no fixed number of rollouts in parallel",
            hint="leave out one of boost and parallel",
            param="options",
        )
    wants = bool(asked) or (asked is None and mode == ALL and not is_fixed and not spec.baseline)
    is_on = wants and mode != OFF
    if asked is None and not is_on:
        return spec
    return replace(spec, options={**spec.options, OPTION: is_on})
