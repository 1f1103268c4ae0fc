"""What the daemon decides about a request: whether the run is boosted, by which rule it may end
early, whether it may be deterministic, and whether it may go on from an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flashedge.config import Config
from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.runtime.request.calibrations import collect_settings, find_calibration, find_mismatch
from flashedge.runtime.request.early_exit import build_exit_rule
from flashedge.runtime.request.validation import Request

REQUEST, CALIBRATION, DEFAULTS = "request", "calibration", "defaults"

MCTS, BOOST = "mcts", "boost"
"""The strategy that can be boosted, and the option that says whether it is."""
OFF, ASKED, ALL = "off", "asked", "all"
"""Values of scheduling_boost. off: no run is boosted; asked: runs that ask for it; all: every MCTS
run that does not refuse and that `decide_boost` does not exclude."""
USUAL = {"parallel": 1, "take": "launch"}
"""Options of MCTS, with the only values that a boosted run may give them."""

SHAPES = {"generator": "replay_shape", "verifier": "score_shape"}
"""Fields of the self-test that hold the shape of each engine's deterministic passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions about a request. The store keeps them with it."""

    request: Request
    """The request as it came, but with the early exit and the boosting that were decided."""
    early_exit_source: str | None = None
    """Who decided: request, calibration or defaults. None if the request wants no early exit."""
    early_exit_note: str | None = None
    """What the user should know about that decision."""

    def list_decisions(self) -> dict[str, Any]:
        """List the fields that may differ from the request's, as plain JSON values."""
        fields = self.to_json()
        names = ("early_exit", "options", "early_exit_source", "early_exit_note")
        return {name: fields[name] for name in names}

    def to_json(self) -> dict[str, Any]:
        """Join the request's fields and the decisions, as JSON values, for `RunStarted.config`."""
        return {
            **self.request.to_json(),
            "early_exit_source": self.early_exit_source,
            "early_exit_note": self.early_exit_note,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Invert `to_json`. Raises as `Request.from_json`."""
        fields = dict(data)
        source, note = fields.pop("early_exit_source", None), fields.pop("early_exit_note", None)
        request = Request.from_json(fields)
        return cls(request=request, early_exit_source=source, early_exit_note=note)


def make_plan(request: Request, config: Config, fingerprint: Callable[[], str]) -> Plan:
    """Decide on boosting and early exit. fingerprint: computes that of the serving pair. Raises
    RequestError, ConfigError."""
    return decide_exit(decide_boost(request, config.scheduling_boost), config, fingerprint)


def is_boosted(request: Request) -> bool:
    """Whether a run is boosted. request: its plan's, where that was decided."""
    return request.strategy == MCTS and bool(request.options.get(BOOST))


def decide_boost(request: Request, mode: str) -> Request:
    """Decide whether the run is boosted, and write that into the request's options. mode: a value
    of scheduling_boost. Raises RequestError for a run that asks for boosting together with a fixed
    number of rollouts, or with results in the order of arrival, which no log could replay."""
    if request.strategy != MCTS:
        return request
    options = request.options
    asked = options.get(BOOST)
    if not isinstance(asked, bool | None):
        return request  # `build_search` refuses it
    excluded = [name for name, usual in USUAL.items() if options.get(name, usual) != usual]
    if asked and excluded:
        raise RequestError(
            f"a boosted run has no {' and no '.join(excluded)} of its own",
            hint=f"leave out boost, or {' and '.join(excluded)}",
            param="options",
        )
    may_be = not (excluded or request.baseline or request.deterministic)
    wants = asked or (asked is None and mode == ALL and may_be)
    is_on = wants and mode != OFF
    if asked is None and not is_on:
        return request
    return replace(request, options={**options, BOOST: is_on})


def decide_exit(request: Request, config: Config, fingerprint: Callable[[], str]) -> Plan:
    """Choose the early exit: the request's, a calibration's or the default. A calibration that does
    not fit is ignored, and the note says why. The fingerprint is computed only if there is a
    calibration. Raises ConfigError."""
    given = request.early_exit
    if given is None:
        return Plan(request=request)
    if given.names_policy:
        return Plan(request=request, early_exit_source=REQUEST)
    found = find_calibration(request.pair, request.strategy, config)
    if found is None:
        return Plan(request=request, early_exit_source=DEFAULTS)
    changed = find_mismatch(found, collect_settings(request), fingerprint())
    if changed is not None:
        note = f"the calibration of {found.date} is not used: {changed}; calibrate again"
        return Plan(request=request, early_exit_source=DEFAULTS, early_exit_note=note)
    if found.rule is None:
        note = f"the calibration of {found.date} found no early exit that pays, so none is used"
        chosen = replace(request, early_exit=None)
        return Plan(request=chosen, early_exit_source=CALIBRATION, early_exit_note=note)
    chosen = replace(request, early_exit=given.take_rule(found.rule))
    return Plan(request=chosen, early_exit_source=CALIBRATION)


def pin_early_exit(plan: Plan) -> Request:
    """Write the whole early exit of an earlier run into its request, so that neither a calibration
    nor another default changes it when it runs again."""
    request, given = plan.request, plan.request.early_exit
    if given is None:
        return request
    rule = build_exit_rule(given, request.strategy)
    return replace(request, early_exit=given.take_rule(rule))


def check_continues(earlier: Plan, plan: Plan, run_id: str) -> None:
    """Raises Conflict if the plans differ in more than token budget and deadline, or if the run is
    boosted, since a longer one would explore something else."""
    now = plan.request
    limited = replace(earlier.request, token_budget=now.token_budget, deadline_s=now.deadline_s)
    if replace(earlier, request=limited) != plan:
        raise Conflict(
            f"run {run_id} had another request or early exit;"
            " only token_budget and deadline_s may differ",
            param="continues",
        )
    if is_boosted(now):
        raise Conflict(
            f"run {run_id} was boosted, so a longer run would not begin as it did",
            hint="submit it without continues, or without boosting",
            param="continues",
        )


def check_shapes(self_test: Mapping[str, Any] | None) -> None:
    """Raises RequestError if the self-test found that no search can be deterministic, EngineDead
    while the self-test runs."""
    if self_test is None:
        raise EngineDead(
            "the engines' self-test still runs, and deterministic requests need its result",
            hint="ask again in a minute",
        )
    why, hint = None, "leave out deterministic"
    lacking = [role for role, name in SHAPES.items() if self_test.get(name) is None]
    if failure := self_test.get("failure"):
        why = f"the self-test did not finish ({failure})"
    elif no_passes := self_test.get("no_passes"):
        why, hint = no_passes
    elif lacking:
        why = f"no shape of passes gives equal bits for the {' and the '.join(lacking)}"
        hint = f"{hint}; `flashedge ps --json` shows the self-test"
    if why is not None:
        raise RequestError(
            f"no search can be deterministic here: {why}", hint=hint, param="deterministic"
        )


def check_same_bits(earlier: Mapping[str, Any], self_test: Mapping[str, Any] | None) -> None:
    """Raises Conflict if an earlier run's results may have other bits than new ones."""
    if earlier.get("fingerprint") != (self_test or {}).get("fingerprint"):
        raise Conflict(
            f"run {earlier.get('id')} was computed by other models or engines, so it can't go on"
            " deterministically",
            hint="submit it without continues",
            param="continues",
        )
