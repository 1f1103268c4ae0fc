"""Early exit: the options of a request, and the rule and policy that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from flashedge.certainty.history import CONSISTENCY, ENTROPY, LEAD, MEASURES, REWARD
from flashedge.certainty.policies import GiveUp, Policy
from flashedge.certainty.rules import POLICIES, Rule
from flashedge.errors import RequestError
from flashedge.runtime.request.checks import check_choice, check_float, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitOptions:
    """A request's early exit. Values that are left out are the strategy's own.

    A run without early exit has no ExitOptions (the even policy).
    Ref: arXiv 2412.20993 App. F.2, G.4; defaults: Table 3.
    """

    policy: str | None = None
    """One of POLICIES, or LEAD."""
    detect: int | None = None
    """The progress (paths, rollouts, probes) at which the policy decides for the first time."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Measure -> least value. All must be met."""
    max_tokens: int | None = None
    """`length` only: stop at `detect` if the run has spent at most so many tokens."""
    curve: tuple[tuple[float, int], ...] = ()
    """Curves only: (certainty, progress needed) pairs of calibration runs."""
    give_up_after: int = 0
    """The progress from which on a run that does not converge is stopped. 0 turns this off."""
    give_up_below: float = 0.3
    """A run does not converge while the strategy's first measure is below this. Of a vote that is
    its entropy: the chance of the lead is high from the start."""

    def __post_init__(self) -> None:
        """Raises RequestError."""
        if self.policy is not None:
            check_choice("early_exit.policy", self.policy, (*POLICIES, LEAD))
        if self.detect is not None:
            check_int("early_exit.detect", self.detect, 1, 1 << 20)
        if not isinstance(self.thresholds, Mapping):
            raise RequestError("early_exit.thresholds must be an object", param="early_exit")
        for name, value in self.thresholds.items():
            check_choice("early_exit.thresholds", name, MEASURES)
            check_float(f"early_exit.thresholds.{name}", value, 0.0, 1.0)
        if self.max_tokens is not None:
            check_int("early_exit.max_tokens", self.max_tokens, 1, 1 << 40)
        for certainty, progress in self.curve:
            check_float("early_exit.curve", certainty, 0.0, 1.0)
            check_int("early_exit.curve", progress, 0, 1 << 20)
        check_int("early_exit.give_up_after", self.give_up_after, 0, 1 << 20)
        check_float("early_exit.give_up_below", self.give_up_below, 0.0, 1.0)
        if self.policy == LEAD and self.thresholds and set(self.thresholds) != {LEAD}:
            raise RequestError(
                "early_exit.policy lead takes the threshold of lead only", param="early_exit"
            )
        for kind, needs in (("length", self.max_tokens), ("curve", self.curve)):
            if self.policy is not None and self.policy.endswith(kind) and not needs:
                missing = "curve" if kind == "curve" else "max_tokens"
                raise RequestError(
                    f"early_exit.policy {self.policy} needs early_exit.{missing}",
                    param="early_exit",
                )

    @classmethod
    def from_rule(cls, rule: Rule) -> ExitOptions:
        return cls().take_rule(rule)

    def take_rule(self, rule: Rule) -> ExitOptions:
        """A rule's policy, with what these options say of giving up."""
        return replace(
            self,
            policy=rule.policy,
            detect=rule.detect,
            thresholds=dict(rule.thresholds),
            max_tokens=rule.max_tokens or None,
            curve=rule.curve,
        )

    @property
    def names_policy(self) -> bool:
        """Whether any part of the policy is given, so that no calibration applies."""
        given = (self.policy, self.detect, self.max_tokens)
        return bool(self.thresholds or self.curve or any(v is not None for v in given))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExitOptions:
        """Invert `dataclasses.asdict`; lists stand for tuples. Raises RequestError."""
        if unknown := set(data) - set(cls.__dataclass_fields__):
            names = ", ".join(sorted(unknown))
            raise RequestError(f"early_exit has no field {names}", param="early_exit")
        try:
            curve = tuple((at, need) for at, need in data.get("curve") or ())
        except (TypeError, ValueError) as error:
            raise RequestError(
                "early_exit.curve must be a list of [certainty, progress]", param="early_exit"
            ) from error
        return cls(**{**data, "curve": curve})


VOTES = ("self_consistency", "best_of_n")
_BY_COUNTS = Rule(policy=LEAD, detect=4, thresholds=((LEAD, 0.955),))
"""Of votes, whatever the models: see docs/results/certainty.md."""

_PAPER_VOTES = Rule(policy="static", detect=5, thresholds=((ENTROPY, 0.7),))
_PAPER_TREES = Rule(policy="static", detect=16, thresholds=((ENTROPY, 0.85), (REWARD, 0.99)))
_PAPER: Mapping[str, Rule] = MappingProxyType(
    {
        "self_consistency": _PAPER_VOTES,
        "best_of_n": _PAPER_VOTES,
        "mcts": Rule(policy="static", detect=3, thresholds=((ENTROPY, 0.99), (REWARD, 0.4))),
        "probed_cot": Rule(policy="every_step", detect=1, thresholds=((CONSISTENCY, 1.0),)),
    }
)
"""The rules of Table 3 of arXiv 2412.20993 for GSM8K. Curves and `give_up_below` use the first
measure. The threshold of `reward` is on the scale of one step's score in [0, 1], as in the paper,
whatever the run's aggregate is (see `certainty.rewards`). It suits the paper's reward model; other
verifiers need calibration."""


def build_exit_rule(options: ExitOptions, strategy: str) -> Rule:
    """The rule of a run that no calibration fits.

    Votes whose request names no policy stop by their counts. Everything else is completed by the
    defaults of `build_paper_rule`.
    """
    if options.policy == LEAD or (strategy in VOTES and not options.names_policy):
        return replace(
            _BY_COUNTS,
            detect=options.detect or _BY_COUNTS.detect,
            thresholds=tuple(options.thresholds.items()) or _BY_COUNTS.thresholds,
        )
    return build_paper_rule(strategy, options)


def build_paper_rule(strategy: str, options: ExitOptions = ExitOptions()) -> Rule:
    """Complete `options` by the paper's rule. Strategies that the paper does not cover use that of
    REBASE. It suits the paper's models; other models need calibration."""
    usual = _PAPER.get(strategy, _PAPER_TREES)
    return Rule(
        policy=options.policy or usual.policy,
        detect=options.detect or usual.detect,
        thresholds=tuple(options.thresholds.items()) or usual.thresholds,
        max_tokens=options.max_tokens or 0,
        curve=options.curve,
    )


def build_exit_policy(options: ExitOptions | None, strategy: str) -> Policy | None:
    """Build the policy of a run. None, the even policy, lets it run to its end."""
    if options is None:
        return None
    rule = build_exit_rule(options, strategy)
    if not options.give_up_after:
        return rule.build_policy()
    measure = rule.thresholds[0][0]
    return GiveUp(
        policy=rule.build_policy(),
        after=options.give_up_after,
        below=options.give_up_below,
        measure=ENTROPY if measure == LEAD else measure,
    )
