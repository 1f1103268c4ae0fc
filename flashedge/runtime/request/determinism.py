"""What a deterministic search can't have: whatever lets a clock, the order of arrival or the load
of the engines change what it explores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.search.strategies.mcts import ARRIVAL

if TYPE_CHECKING:
    from flashedge.runtime.request.spec import RunSpec

SHAPES = {"generator": "replay_shape", "verifier": "score_shape"}
"""What the self-test calls the shape of each engine's passes."""
WITHOUT = "or leave out deterministic"


def check_deterministic(spec: RunSpec) -> None:
    """Raises RequestError that names the first field that a deterministic search can't have."""
    if spec.deadline_s is not None:
        raise _refuse(
            "deadline_s", "a deadline, which cuts by the clock", "limit it by token_budget"
        )
    if spec.options.get("boost"):
        raise _refuse(
            "options.boost",
            "boosted rollouts, whose number follows the load",
            "set a fixed number of rollouts by the option parallel",
        )
    if spec.options.get("take") == ARRIVAL:
        raise _refuse(
            "options.take", "results taken by arrival", "take them in the order of launch"
        )
    if spec.guidance is not None:
        raise _refuse(
            "deterministic",
            "a grammar (response_format, tools), which no pass verifies",
            "leave out what the answer has to match",
        )
    if spec.baseline:
        raise _refuse(
            "baseline", "the stock loop, which ends steps behind the engine", "leave out baseline"
        )


def check_shapes(self_test: Mapping[str, Any] | None) -> None:
    """Raises RequestError where no search can be deterministic: the generator computes no passes,
    or the self-test found no shape in which an engine gives the same bits twice, or did not end.
    Raises EngineDead while it runs."""
    if self_test is None:
        raise EngineDead(
            "the engines' self-test still runs, and deterministic requests need what it finds",
            hint="ask again in a minute",
        )
    found = self_test
    if failure := found.get("failure"):
        raise RequestError(
            f"no search can be deterministic here: the self-test did not end ({failure})",
            hint="leave out deterministic",
            param="deterministic",
        )
    if why := found.get("no_passes"):
        raise RequestError(
            f"no search can be deterministic here: {why}",
            hint="set second_runner = false, or leave out deterministic",
            param="deterministic",
        )
    lacking = [role for role, name in SHAPES.items() if found.get(name) is None]
    if lacking:
        raise RequestError(
            "no search can be deterministic here: there is no shape of passes that gives equal bits"
            f" for the {' and the '.join(lacking)}",
            hint="leave out deterministic; `flashedge ps --json` shows the self-test",
            param="deterministic",
        )


def check_same_bits(earlier: Mapping[str, Any], self_test: Mapping[str, Any] | None) -> None:
    """Raises Conflict where an earlier run's results would have other bits than new ones."""
    if earlier.get("fingerprint") != (self_test or {}).get("fingerprint"):
        raise Conflict(
            f"run {earlier.get('id')} was computed by other models or engines, so it can't go on"
            " deterministically",
            hint="start it anew",
            param="continues",
        )


def _refuse(param: str, what: str, instead: str) -> RequestError:
    return RequestError(
        f"a deterministic search can't have {what}", hint=f"{instead}, {WITHOUT}", param=param
    )
