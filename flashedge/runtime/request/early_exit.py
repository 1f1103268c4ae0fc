"""When a run may stop before its end: what a request can say, and the policy made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flashedge.certainty.history import CONSISTENCY, ENTROPY, MEASURES, REWARD
from flashedge.certainty.policies import GiveUp, Policy
from flashedge.certainty.rules import POLICIES, Rule
from flashedge.errors import RequestError
from flashedge.runtime.request.checks import check_choice, check_float, check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitOptions:
    """Early exit. Left out, `policy`, `detect` and `thresholds` are those of the strategy.

    policy: one of POLICIES ("even" is a run without early exit); detect: the progress (paths,
    rollouts, probes) at which the policy is first asked; thresholds: measure -> least value, all
    must be met; max_tokens (length): stop at `detect` with at most so many tokens; curve
    (…_curve): (certainty, progress needed) pairs of calibration runs; give_up_after, give_up_below:
    stop as not converging when the strategy's first measure is below the one at the progress of the
    other (0: never).
    Ref: arXiv 2412.20993 App. F.2, G.4; defaults: Table 3.
    """

    policy: str | None = None
    detect: int | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    curve: tuple[tuple[float, int], ...] = ()
    give_up_after: int = 0
    give_up_below: float = 0.3

    def __post_init__(self) -> None:
        """Raises RequestError."""
        if self.policy is not None:
            check_choice("early_exit.policy", self.policy, POLICIES)
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
        for kind, needs in (("length", self.max_tokens), ("curve", self.curve)):
            if self.policy is not None and self.policy.endswith(kind) and not needs:
                missing = "curve" if kind == "curve" else "max_tokens"
                raise RequestError(
                    f"early_exit.policy {self.policy} needs early_exit.{missing}",
                    param="early_exit",
                )

    @classmethod
    def of(cls, rule: Rule) -> ExitOptions:
        return cls(
            policy=rule.policy,
            detect=rule.detect,
            thresholds=dict(rule.thresholds),
            max_tokens=rule.max_tokens or None,
            curve=rule.curve,
        )

    @property
    def says_how(self) -> bool:
        """Whether anything is said of the policy, so that no calibration may decide it."""
        said = (self.policy, self.detect, self.max_tokens)
        return bool(self.thresholds or self.curve or any(v is not None for v in said))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExitOptions:
        """The inverse of `dataclasses.asdict`, lists for tuples. Raises RequestError."""
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            said = ", ".join(sorted(unknown))
            raise RequestError(f"early_exit has no field {said}", param="early_exit")
        fields = dict(data)
        try:
            fields["curve"] = tuple((at, need) for at, need in data.get("curve") or ())
        except (TypeError, ValueError) as error:
            raise RequestError(
                "early_exit.curve must be a list of [certainty, progress]", param="early_exit"
            ) from error
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """What a strategy does unless told otherwise. Thresholds: the first is its first measure."""

    detect: int
    thresholds: Mapping[str, float]
    policy: str = "static"


_SC = _Usual(detect=5, thresholds={ENTROPY: 0.7})
_TREE = _Usual(detect=16, thresholds={ENTROPY: 0.85, REWARD: 0.99})
_USUAL: Mapping[str, _Usual] = MappingProxyType(
    {
        "self_consistency": _SC,
        "best_of_n": _SC,
        "mcts": _Usual(detect=3, thresholds={ENTROPY: 0.99, REWARD: 0.4}),
        "probed_cot": _Usual(detect=1, thresholds={CONSISTENCY: 1.0}, policy="every_step"),
    }
)


def rule_of(options: ExitOptions, strategy: str) -> Rule:
    """What `options` say, the rest as the strategy does.

    Thresholds unless given: Table 3 of arXiv 2412.20993 for GSM8K; strategies that it does not
    name do as REBASE does. They are the paper's models' and want calibration for any other.
    """
    usual = _USUAL.get(strategy, _TREE)
    return Rule(
        policy=options.policy or usual.policy,
        detect=usual.detect if options.detect is None else options.detect,
        thresholds=tuple((options.thresholds or usual.thresholds).items()),
        max_tokens=options.max_tokens or 0,
        curve=options.curve,
    )


def policy_of(options: ExitOptions | None, strategy: str) -> Policy | None:
    """The policy of a run; None: it goes to its end (the even policy)."""
    if options is None:
        return None
    rule = rule_of(options, strategy)
    if not options.give_up_after:
        return rule.made()
    return GiveUp(
        policy=rule.made(),
        after=options.give_up_after,
        below=options.give_up_below,
        measure=rule.thresholds[0][0],
    )
