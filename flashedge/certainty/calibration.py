"""Replays recorded runs to find the rule that saves the most tokens safely.

Each run is compared with itself: stopped by the rule, and at full compute. The two differ only
where the answer changes after the stop, so that few runs add noise. A rule qualifies if

- the one-sided 95 % upper bound of its loss of accuracy is within the allowed loss
- it spends less than the smallest cap that meets the same bound without a rule
- the bound also holds when each fold of the problems is replayed under the rule that the other
  folds choose, since the best of many rules looks better on its own problems than it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeVar

from scipy.special import betaincinv

from flashedge.certainty.measures import History
from flashedge.certainty.policies import Policy, Rule

T = TypeVar("T")
FOLDS = 5
"""Folds of the cross-validation. With two, each choice would see half of the problems; with fifty,
choosing would take ten times as long."""
MAX_DETECTS, MAX_FIRST, MAX_OTHER = 12, 16, 6
"""Most values of the grid: of `Rule.detect`, and of the thresholds of the first and each further
measure. Two measures make 1,344 rules; ten times as many values of each would make 1.2 million."""
ALPHA = 0.05
"""Error probability of the one-sided bounds."""
_Z_ONE_SIDED = 1.6448536269514722  # the normal quantile of 1 - ALPHA
_Z_TWO_SIDED = 1.96  # the normal quantile of 97.5 %
_HALVINGS = 50  # of an interval of length 2 at most, down to 2e-15


# ---------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, or would have ended."""

    right: bool
    tokens: int
    """Committed tokens of the tree."""
    overhead: int = 0
    """Tokens of probes, which a run without a policy does not make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """One run at full compute, ready for replay. Raises ValueError if the numbers of `stops` and
    `checkpoints` differ."""

    problem: str
    cap: int
    """The progress at which the run ends anyway."""
    checkpoints: History
    """(k,) One at every progress that the run reached."""
    stops: tuple[Ending, ...]
    """(k,) How the run would have ended at each checkpoint."""
    whole: Ending
    """How it ended at full compute."""

    def __post_init__(self) -> None:
        if len(self.stops) != len(self.checkpoints):
            raise ValueError(f"{len(self.checkpoints)} checkpoints, {len(self.stops)} stops")


def find_stop(checkpoints: History, policy: Policy, cap: int) -> int | None:
    """Index of the checkpoint at which `policy` stops the run; None if it never does. The policy
    sees only what it would have seen in a live run: the first checkpoint at or beyond the progress
    of each allotment."""
    seen: History = ()
    due = max(1, policy.allot(seen, cap).more)
    for i, checkpoint in enumerate(checkpoints):
        if checkpoint.progress < due:
            continue
        seen = (*seen, checkpoint)
        more = policy.allot(seen, cap).more
        if more <= 0:
            return i
        due = checkpoint.progress + more
    return None


def replay(trace: RunTrace, policy: Policy) -> Ending:
    """How the run would have ended under `policy`."""
    at = find_stop(trace.checkpoints, policy, trace.cap)
    return trace.whole if at is None else trace.stops[at]


def end_at(trace: RunTrace, progress: int) -> Ending | None:
    """How the run would have ended with `progress` as its cap; None if it never got there. Exact
    where runs with different caps begin alike: self-consistency, MCTS, and REBASE in trees whose
    `width` divides the cap. Elsewhere it is the larger run, ended early."""
    reached = (i for i, c in enumerate(trace.checkpoints) if c.progress >= progress)
    at = next(reached, None)
    return None if at is None else trace.stops[at]


def end_at_cap(trace: RunTrace, cap: int) -> Ending:
    """How a run ends with a smaller cap and no policy, so without the tokens of probes."""
    ending = end_at(trace, cap) or trace.whole
    return Ending(right=ending.right, tokens=ending.tokens)


# ---------------------------------------------------------------- candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The values of `detect` and of thresholds to try. All but the threshold 1 are taken from
    checkpoints."""

    detects: tuple[int, ...]
    """Progress at which some run could have been stopped."""
    measures: tuple[tuple[str, tuple[float, ...]], ...]
    """(name, thresholds) of each measure. The first measure is part of every rule."""

    @classmethod
    def build(cls, traces: Sequence[RunTrace], measures: Sequence[str]) -> Grid:
        """Collect the values of the checkpoints, thinned out to the numbers that are tried."""
        checkpoints = [c for trace in traces for c in trace.checkpoints[:-1]]
        found = []
        for i, name in enumerate(measures):
            values = (c.measures[name] for c in checkpoints if name in c.measures)
            # rounded down, so that a run still meets the threshold that is its own value
            seen = {math.floor(value * 1e4) / 1e4 for value in values}
            if i == 0:
                found.append((name, _thin_out(sorted({*seen, 1.0}), MAX_FIRST)))
            elif seen:
                found.append((name, _thin_out(sorted(seen), MAX_OTHER)))
        detects = _thin_out(sorted({c.progress for c in checkpoints}), MAX_DETECTS)
        return cls(detects=detects, measures=tuple(found))

    def propose_rules(self, policy: str) -> Iterator[Rule]:
        """All rules of a policy, with a threshold or none for each measure but the first."""
        others: list[tuple[tuple[str, float], ...]] = [()]
        for name, values in self.measures[1:]:
            others += [(*chosen, (name, value)) for chosen in others for value in values]
        first, thresholds = self.measures[0]
        for detect, value, chosen in product(self.detects, thresholds, others):
            yield Rule(policy=policy, detect=detect, thresholds=((first, value), *chosen))


def _thin_out(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Keep at most `most` values, evenly spread, among them the first and the last."""
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(i * (len(values) - 1) / (most - 1))] for i in range(most))


# ---------------------------------------------------------------- the bound of the loss


def count_needed_problems(max_loss: float) -> int:
    """The fewest problems that can show a loss of accuracy of at most `max_loss`, in (0, 1). If a
    rule loses none of n problems, the exact one-sided 95 % bound (Clopper-Pearson) on the share
    that it loses is 1 - 0.05^(1/n), about 3/n: 299 problems for 0.01, 59 for 0.05."""
    return math.ceil(math.log(ALPHA) / math.log1p(-max_loss))


@lru_cache(maxsize=1 << 14)
def bound_loss(lost: int, gained: int, problems: int) -> float:
    """One-sided 95 % upper bound on the loss of accuracy, P(lost) - P(gained).

    lost: problems that only full compute gets right. gained: those that only the rule gets right.
    The bound comes from the score test for paired proportions, which is too optimistic where few
    problems differ. So it is at least the exact bound for `lost - gained` losses. Ref: Tango 1998
    (score test); Clopper and Pearson 1934.
    """
    net = max(0, lost - gained)
    exact = betaincinv(net + 1, problems - net, 1 - ALPHA) if net < problems else 1.0
    return max(_score_bound(lost, gained, problems), float(exact))


def _score_bound(lost: int, gained: int, problems: int) -> float:
    """The largest loss that the score test does not reject at 5 %."""
    low, high = (lost - gained) / problems, 1.0
    for _ in range(_HALVINGS):
        loss = (low + high) / 2
        # The most likely P(gained) if the loss is `loss`: the root of a quadratic equation.
        linear = (2 * problems - lost + gained) * loss - lost - gained
        constant = gained * loss * (loss - 1)
        root = math.sqrt(max(0.0, linear**2 - 8 * problems * constant))
        gain = (root - linear) / (4 * problems)
        variance = problems * (2 * gain + loss * (1 - loss))
        rejected = (problems * loss - lost + gained) > _Z_ONE_SIDED * math.sqrt(max(0.0, variance))
        low, high = (low, loss) if rejected else (loss, high)
    return high


# ---------------------------------------------------------------- the choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs under a rule against the same runs at full compute, one run of each problem."""

    runs: int
    accuracy: float
    """Share of the runs whose answer is right, in [0, 1]."""
    tokens: float
    """Mean tokens of a run, probes included."""
    full_accuracy: float
    full_tokens: float
    """Mean tokens of a run at full compute, without probes."""
    gained: int
    """Runs that are right under the rule and wrong at full compute."""
    lost: int
    """Runs that are wrong under the rule and right at full compute."""

    @property
    def saved(self) -> float:
        """Share of full compute's tokens that the rule saves. Negative where it costs more."""
        return 1 - self.tokens / self.full_tokens if self.full_tokens else 0.0

    @property
    def difference(self) -> float:
        """Accuracy under the rule minus that at full compute."""
        return (self.gained - self.lost) / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) of the 95 % interval of the difference. It is wide for few runs even if none
        differs. Ref: Agresti and Min 2005 (paired proportions, half a run added to each cell)."""
        runs = self.runs + 2
        middle = (self.gained - self.lost) / runs
        differing = self.gained + self.lost + 1
        half = _Z_TWO_SIDED * math.sqrt(differing / runs - middle**2) / math.sqrt(runs)
        return max(-1.0, middle - half), min(1.0, middle + half)

    @property
    def loss_bound(self) -> float:
        """One-sided 95 % upper bound of the loss of accuracy (`bound_loss`)."""
        return bound_loss(self.lost, self.gained, self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of a calibration."""

    rule: Rule | None
    """None if no rule qualifies."""
    comparison: Comparison
    """The rule, or else full compute, on the runs that it was chosen on."""
    validated: Comparison | None
    """Each run under the rule that the other folds chose. None for a single problem."""
    smaller_cap: tuple[int, Comparison] | None
    """(cap, comparison) of the smallest cap that meets the bound without a rule, if any does. A
    rule must beat it, since a user gets it by asking for fewer paths. Ref: arXiv 2412.20993 App.
    F.2 (1)."""
    frontier: tuple[Comparison, ...]
    """The rules that are more accurate than all that cost as much or less, by rising tokens."""
    even: tuple[Comparison, ...]
    """The even policy: runs with smaller caps and without a rule, by rising cap."""


class Calibrator:
    """Chooses a rule of one policy. traces: one run at full compute of each problem, at least one.
    measures: the first one has a threshold in every rule. Raises ValueError when a problem occurs
    twice."""

    def __init__(self, traces: Sequence[RunTrace], policy: str, measures: Sequence[str]) -> None:
        if len({trace.problem for trace in traces}) < len(traces):
            raise ValueError("a problem occurs twice")
        self._traces = tuple(traces)
        self._policy = policy
        self._all = range(len(traces))
        self._grid = Grid.build(traces, measures)
        self._caps = sorted({c.progress for trace in traces for c in trace.checkpoints[:-1]})
        self._replays: dict[Rule, tuple[Ending, ...]] = {}

    def choose(self, max_loss: float) -> Choice:
        """Choose the rule that saves the most tokens among those that qualify. max_loss: the
        accuracy that may be lost, in (0, 1)."""
        rule = self.find_best(max_loss)
        validated = self._cross_validate(max_loss)
        if validated is not None and validated.loss_bound > max_loss:
            rule = None
        compared = [self.compare(r) for r in self._grid.propose_rules(self._policy)]
        return Choice(
            rule=rule,
            comparison=self.compare(rule),
            validated=validated,
            smaller_cap=self._find_cap(self._all, max_loss),
            frontier=keep_pareto_front(compared),
            even=tuple(self._compare_cap(cap, self._all) for cap in self._caps),
        )

    def find_best(self, max_loss: float, runs: Sequence[int] | None = None) -> Rule | None:
        """The cheapest rule that meets the bound and costs less than the smallest cap that does, or
        than full compute if no cap does. runs: indices of the runs to look at; None stands for all.
        In a tie the rule with the larger thresholds wins, then the one with the larger `detect`."""
        at = self._all if runs is None else runs
        baseline = self._find_cap(at, max_loss)
        most_tokens = self.compare(None, at).tokens if baseline is None else baseline[1].tokens
        fit: list[tuple[float, float, int, Rule]] = []
        for rule in self._grid.propose_rules(self._policy):
            found = self.compare(rule, at)
            if found.tokens < most_tokens and found.loss_bound <= max_loss:
                strictness = math.fsum(value for _, value in rule.thresholds)
                fit.append((found.tokens, -strictness, -rule.detect, rule))
        return min(fit, key=lambda entry: entry[:3])[-1] if fit else None

    def compare(self, rule: Rule | None, runs: Sequence[int] | None = None) -> Comparison:
        """Compare a rule with full compute on some runs or all. None is full compute itself."""
        at = self._all if runs is None else runs
        endings = self._replay(rule)
        return compare_endings([(endings[i], self._traces[i].whole) for i in at])

    def _cross_validate(self, max_loss: float) -> Comparison | None:
        """Replay each fold under the rule that the other folds choose. None for a single problem.
        The other folds may lose as many problems as all folds together: a bound from fewer problems
        is wider, so that otherwise no rule might qualify."""
        count = len(self._traces)
        pairs: list[tuple[Ending, Ending]] = []
        for fold in range(min(FOLDS, count) if count > 1 else 0):
            inside = [i for i in range(count) if i % FOLDS != fold]
            rule = self.find_best(min(1.0, max_loss * count / len(inside)), inside)
            endings = self._replay(rule)
            pairs += [(endings[i], self._traces[i].whole) for i in range(fold, count, FOLDS)]
        return compare_endings(pairs) if pairs else None

    def _find_cap(self, runs: Sequence[int], max_loss: float) -> tuple[int, Comparison] | None:
        for cap in self._caps:
            found = self._compare_cap(cap, runs)
            if found.loss_bound <= max_loss:
                return cap, found
        return None

    def _compare_cap(self, cap: int, runs: Sequence[int]) -> Comparison:
        traces = (self._traces[i] for i in runs)
        return compare_endings([(end_at_cap(trace, cap), trace.whole) for trace in traces])

    def _replay(self, rule: Rule | None) -> tuple[Ending, ...]:
        if rule is None:
            wholes = (trace.whole for trace in self._traces)
            return tuple(Ending(right=w.right, tokens=w.tokens) for w in wholes)
        if rule not in self._replays:
            self._replays[rule] = tuple(replay(trace, rule) for trace in self._traces)
        return self._replays[rule]


def compare_endings(pairs: Sequence[tuple[Ending, Ending]]) -> Comparison:
    """pairs: (num_runs,), at least one: the ending under a rule and that at full compute."""
    runs = len(pairs)
    return Comparison(
        runs=runs,
        accuracy=sum(ending.right for ending, _ in pairs) / runs,
        tokens=sum(ending.tokens + ending.overhead for ending, _ in pairs) / runs,
        full_accuracy=sum(whole.right for _, whole in pairs) / runs,
        full_tokens=sum(whole.tokens for _, whole in pairs) / runs,
        gained=sum(ending.right and not whole.right for ending, whole in pairs),
        lost=sum(whole.right and not ending.right for ending, whole in pairs),
    )


def keep_pareto_front(points: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Keep the points that are more accurate than all that cost as much or less, by rising
    tokens. Of equal points the first is kept."""
    kept: list[Comparison] = []
    for point in sorted(points, key=lambda p: (p.tokens, -p.accuracy)):
        if not kept or point.accuracy > kept[-1].accuracy:
            kept.append(point)
    return tuple(kept)
