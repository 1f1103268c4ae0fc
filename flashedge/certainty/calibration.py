"""Which rule saves most tokens and loses no more accuracy than allowed: chosen by replay.

Accuracy is compared run by run (paired): a rule only answers differently where it stops a run
before its answer changed, so the noise is that of those few runs, not of the problems' difficulty.
What is reported beside the choice was measured on problems that it was not made on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashedge.certainty.candidates import Grid, ended_at
from flashedge.certainty.replay import Spent, Trace, replayed
from flashedge.certainty.rules import Rule

FOLDS = 5
CAUTION = 1.0  # standard errors that a loss is taken to be larger than it was seen
_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of some runs under a rule. accuracy in [0, 1]; tokens: mean of a run, probes included;
    gained, lost: runs that are right (wrong) here and wrong (right) at full compute."""

    runs: int
    accuracy: float
    tokens: float
    full_accuracy: float
    full_tokens: float
    gained: int
    lost: int

    @property
    def saved(self) -> float:
        """Share of the tokens of full compute, negative where the rule costs more."""
        return 1 - self.tokens / self.full_tokens if self.full_tokens else 0.0

    @property
    def difference(self) -> float:
        """Accuracy against full compute."""
        return (self.gained - self.lost) / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the difference; wide where few runs tell, even if none of them differs.

        Ref: Agresti and Min 2005 (paired proportions, half a run added to each cell).
        """
        runs = self.runs + 2
        middle = (self.gained - self.lost) / runs
        half = _Z95 * math.sqrt((self.gained + self.lost + 1) / runs - middle**2) / math.sqrt(runs)
        return max(-1.0, middle - half), min(1.0, middle + half)

    def within(self, floor: float, caution: float = CAUTION) -> bool:
        """Whether so little is lost, the loss taken `caution` standard errors worse than seen:
        without a floor a rule must not have lost, or have gained more than it lost."""
        noise = caution * math.sqrt(self.gained + self.lost)
        return self.gained - self.lost - noise >= -floor * self.runs - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place on the tokens-to-accuracy plane: mean tokens of a run, accuracy."""

    tokens: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """rule: None where full compute is best; figures: on the runs that it was chosen on;
    validated: each run under the rule that the other folds' runs chose, None for a single problem;
    frontier: the rules that no other one beats; even: full compute with a smaller cap."""

    rule: Rule | None
    figures: Figures
    validated: Figures | None
    frontier: tuple[Point, ...]
    even: tuple[Point, ...]


class Calibrator:
    """traces: at least one, full compute; measures: names, the first one always has a threshold.

    Each rule is replayed once, however many folds ask for it.
    """

    def __init__(self, traces: Sequence[Trace], policy: str, measures: Sequence[str]) -> None:
        self._traces = tuple(traces)
        self._policy = policy
        self._grid = Grid.over(traces, measures)
        self._known: dict[Rule, tuple[Spent, ...]] = {}

    def choose(self, floor: float) -> Choice:
        """The rule that saves most among those that lose at most `floor` (in [0, 1])."""
        every = range(len(self._traces))
        rules = tuple(self._grid.rules(self._policy, self._traces))
        rule = self._best(rules, every, floor)
        seen = [self.figures(r) for r in rules]
        return Choice(
            rule=rule,
            figures=self.figures(rule),
            validated=self._validated(floor),
            frontier=pareto(Point(tokens=f.tokens, accuracy=f.accuracy) for f in seen),
            even=tuple(self._even(progress) for progress in self._grid.detects),
        )

    def figures(self, rule: Rule | None, runs: Sequence[int] | None = None) -> Figures:
        """Of all runs or of those at some places; None: full compute, which makes no probes."""
        at = range(len(self._traces)) if runs is None else runs
        return figures([(self._spent(rule)[i], self._traces[i].whole) for i in at])

    # ------------------------------------------------------------ inner

    def _best(self, rules: Sequence[Rule], runs: Sequence[int], floor: float) -> Rule | None:
        """Ties go to the rule that is harder to meet, then to the later detection."""
        most = self.figures(None, runs).tokens
        fit: list[tuple[float, float, int, Rule]] = []
        for rule in rules:
            found = self.figures(rule, runs)
            if found.tokens < most and found.within(floor):
                strict = math.fsum(value for _, value in rule.thresholds)
                fit.append((found.tokens, -strict, -rule.detect, rule))
        return min(fit, key=lambda at: at[:3])[-1] if fit else None

    def _validated(self, floor: float) -> Figures | None:
        """Runs of one problem are in one fold."""
        problems = list(dict.fromkeys(trace.problem for trace in self._traces))
        fold_of = {problem: i % FOLDS for i, problem in enumerate(problems)}
        pairs: list[tuple[Spent, Spent]] = []
        for fold in range(min(FOLDS, len(problems)) if len(problems) > 1 else 0):
            folds = [fold_of[trace.problem] for trace in self._traces]
            inside = [i for i, at in enumerate(folds) if at != fold]
            rules = tuple(self._grid.rules(self._policy, [self._traces[i] for i in inside]))
            rule = self._best(rules, inside, floor)
            left_out = (i for i, at in enumerate(folds) if at == fold)
            pairs += [(self._spent(rule)[i], self._traces[i].whole) for i in left_out]
        return figures(pairs) if pairs else None

    def _spent(self, rule: Rule | None) -> tuple[Spent, ...]:
        if rule is None:
            wholes = (trace.whole for trace in self._traces)
            return tuple(Spent(right=w.right, tokens=w.tokens) for w in wholes)
        if rule not in self._known:
            policy = rule.made()
            self._known[rule] = tuple(replayed(trace, policy) for trace in self._traces)
        return self._known[rule]

    def _even(self, progress: int) -> Point:
        ends = [ended_at(trace, progress) or trace.whole for trace in self._traces]
        return Point(
            tokens=math.fsum(e.tokens for e in ends) / len(ends),
            accuracy=sum(e.right for e in ends) / len(ends),
        )


def figures(pairs: Sequence[tuple[Spent, Spent]]) -> Figures:
    """pairs: (num_runs,) of what was spent and the same run at full compute, at least one."""
    runs = len(pairs)
    return Figures(
        runs=runs,
        accuracy=sum(spent.right for spent, _ in pairs) / runs,
        tokens=sum(spent.tokens + spent.overhead for spent, _ in pairs) / runs,
        full_accuracy=sum(whole.right for _, whole in pairs) / runs,
        full_tokens=sum(whole.tokens for _, whole in pairs) / runs,
        gained=sum(spent.right and not whole.right for spent, whole in pairs),
        lost=sum(whole.right and not spent.right for spent, whole in pairs),
    )


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those that no other one beats in both, by rising tokens and accuracy."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.tokens, -p.accuracy)):
        if not found or point.accuracy > found[-1].accuracy:
            found.append(point)
    return tuple(found)
