"""Early exit: the options of a request, and the rule and policy that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flashedge.certainty.measures import CONSENSUS, CONSISTENCY, ENTROPY, LEAD, MEASURES, REWARD
from flashedge.certainty.policies import POLICIES, GiveUp, Policy, Rule
from flashedge.errors import RequestError
from flashedge.runtime.request.values import check_choice, check_float, check_int

REMOVED = ("length", "initial_curve", "dynamic_curve")
"""Policies that no new run can have. Stored runs that had one can still be read."""
_REMOVED_FIELDS = ("max_tokens", "curve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitOptions:
    """A request's early exit. `build_exit_rule` fills in what is left out.

    `Request.early_exit` is None without early exit, the even policy of the paper.
    Ref: arXiv 2412.20993 App. F.2, G.4; defaults: Table 3.
    """

    policy: str | None = None
    """One of POLICIES, or LEAD."""
    detect: int | None = None
    """The progress (paths, rollouts, probes) at which the policy decides for the first time."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Measure -> least value. All must be met."""
    give_up_after: int = 0
    """The progress from which on a run that does not converge is stopped. 0 turns this off."""
    give_up_below: float = 0.3
    """A run does not converge while the rule's first measure is below this. ENTROPY replaces LEAD,
    which is high from the start. Chosen by hand: with a tenth hardly any run is stopped."""

    def __post_init__(self) -> None:
        """Raises RequestError."""
        if self.policy is not None and self.policy not in REMOVED:
            check_choice("early_exit.policy", self.policy, (*POLICIES, LEAD))
        if self.detect is not None:
            check_int("early_exit.detect", self.detect, 1, 1 << 20)
        if not isinstance(self.thresholds, Mapping):
            raise RequestError("early_exit.thresholds must be an object", param="early_exit")
        for name, value in self.thresholds.items():
            check_choice("early_exit.thresholds", name, MEASURES)
            check_float(f"early_exit.thresholds.{name}", value, 0.0, 1.0)
        check_int("early_exit.give_up_after", self.give_up_after, 0, 1 << 20)
        check_float("early_exit.give_up_below", self.give_up_below, 0.0, 1.0)
        if self.policy == LEAD and self.thresholds and set(self.thresholds) != {LEAD}:
            raise RequestError(
                "early_exit.policy lead takes the threshold of lead only", param="early_exit"
            )

    def take_rule(self, rule: Rule) -> ExitOptions:
        """Copy with the policy of a rule, keeping `give_up_after` and `give_up_below`."""
        return replace(
            self, policy=rule.policy, detect=rule.detect, thresholds=dict(rule.thresholds)
        )

    @property
    def names_policy(self) -> bool:
        """Whether any part of a policy is given, so that no calibration applies."""
        return bool(self.thresholds) or self.policy is not None or self.detect is not None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExitOptions:
        """Invert `dataclasses.asdict`. Raises RequestError."""
        fields = {name: value for name, value in data.items() if name not in _REMOVED_FIELDS}
        if unknown := set(fields) - set(cls.__dataclass_fields__):
            names = ", ".join(sorted(unknown))
            raise RequestError(f"early_exit has no field {names}", param="early_exit")
        return cls(**fields)


VOTES = ("self_consistency", "best_of_n")
"""Strategies that vote among whole answers, so that LEAD suits them."""
_BY_COUNTS = Rule(policy=LEAD, detect=4, thresholds=((LEAD, 0.955),))
"""The rule for votes of any models: see docs/results/certainty.md."""

_PAPER_VOTES = Rule(policy="static", detect=5, thresholds=((ENTROPY, 0.7),))
_PAPER_TREES = Rule(policy="static", detect=16, thresholds=((ENTROPY, 0.85), (REWARD, 0.99)))
_PAPER: Mapping[str, Rule] = {
    "self_consistency": _PAPER_VOTES,
    "best_of_n": _PAPER_VOTES,
    "deepconf": Rule(policy="every_step", detect=1, thresholds=((CONSENSUS, 0.95),)),
    "mcts": Rule(policy="static", detect=3, thresholds=((ENTROPY, 0.99), (REWARD, 0.4))),
    "probed_cot": Rule(policy="every_step", detect=1, thresholds=((CONSISTENCY, 1.0),)),
}
"""The rules of Table 3 of arXiv 2412.20993 for GSM8K; for `deepconf` the threshold of 2508.15260
§4.1, asked after each path (`detect` is ours). The threshold of `reward` is on the scale of one
step's score in [0, 1], as in the paper, for every aggregate (see `certainty.measures`)."""


def build_exit_rule(options: ExitOptions, strategy: str) -> Rule:
    """Complete the rule of a run for which no calibration is used. A vote whose request names no
    policy stops by the lead in its counts. Other rules are completed by `build_paper_rule`. Raises
    RequestError for a removed policy."""
    if options.policy in REMOVED:
        raise RequestError(
            f"early_exit.policy {options.policy} was removed: it showed no gain over a smaller n",
            hint=f"use {', '.join(POLICIES)} or {LEAD}",
            param="early_exit",
        )
    if options.policy == LEAD or (strategy in VOTES and not options.names_policy):
        return _complete(options, _BY_COUNTS)
    return build_paper_rule(strategy, options)


def build_paper_rule(strategy: str, options: ExitOptions = ExitOptions()) -> Rule:
    """Complete `options` by the paper's rule. Strategies that the paper does not cover get that of
    REBASE. The rules suit the paper's models; other models need calibration."""
    return _complete(options, _PAPER.get(strategy, _PAPER_TREES))


def _complete(options: ExitOptions, usual: Rule) -> Rule:
    return Rule(
        policy=options.policy or usual.policy,
        detect=options.detect or usual.detect,
        thresholds=tuple(options.thresholds.items()) or usual.thresholds,
    )


def build_exit_policy(options: ExitOptions | None, strategy: str) -> Policy | None:
    """Build the policy of a run. None lets it run to its end. Raises RequestError for a removed
    policy."""
    if options is None:
        return None
    rule = build_exit_rule(options, strategy)
    if not options.give_up_after:
        return rule
    measure = rule.thresholds[0][0]
    return GiveUp(
        policy=rule,
        after=options.give_up_after,
        below=options.give_up_below,
        measure=ENTROPY if measure == LEAD else measure,
    )
