"""What does stopping a vote early save in tokens, and what does it cost in time?

    python -m scripts.bench.certainty.votes SAMPLES [--steps 1:2.7,16:3.0,64:4.0]

SAMPLES: lines of JSON, or .gz of them, one for each problem: `answer`, `texts` (whole answers to
the problem, or their ends, drawn independently) and `lens` (their tokens). A rule by the lead of
the vote is chosen on the first half of the problems: of those that save a quarter of the tokens and
take at most 1.25 times as long as all paths at once, the one whose answer differs least often from
that of all paths. All rows are judged on the second half.

The votes are those of the product's own search, in a batch that gives each path a token a step. Of
rivals in groups, a group is drawn after the other, each as long as its longest path. --steps:
milliseconds of a decode step of a batch, between which is interpolated (by default those of a real
1.5B on an H100). The last line is JSON.
"""

import argparse
import gzip
import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.certainty.calibration import Comparison, Ending, RunTrace, compare_endings, end_at
from flashedge.certainty.measures import ENTROPY, LEAD, Checkpoint, measure_certainty
from flashedge.certainty.policies import Policy, Rule, find_lead
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule, build_paper_rule
from flashedge.search.base import (
    Cancel,
    Cluster,
    Clustered,
    Expand,
    Finish,
    Generated,
    Reached,
    Result,
)
from flashedge.search.strategies.counted_vote import CountedSelfConsistency
from flashedge.types import FinishReason, Limits, NodeId, Problem, Segment
from scripts.bench.daemon import report

LEAST_SAVED, MAX_TIME = 0.25, 1.25
LIMITS = Limits(max_path_tokens=1 << 30)
SHARE = "share"
"""The measure of a rival: the share of the paths that gave the most frequent answer."""
Curve = Callable[[int], float]
"""Batch -> milliseconds of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Independent answers to one problem, with what a policy would see after each."""

    trace: RunTrace
    lens: tuple[int, ...]
    answers: tuple[str | None, ...]
    """By group: equal answers are the same text."""
    right: frozenset[str]
    """The groups that are right."""

    def list_asks(self, policy: Policy) -> list[int]:
        """The progress at the end of each group that is drawn."""
        cap, asks = self.trace.cap, [0]
        while asks[-1] < cap:
            seen = tuple(self.trace.checkpoints[at - 1] for at in asks[1:])
            more = policy.allot(seen, cap).more
            if more <= 0:
                break
            asks.append(min(cap, asks[-1] + more))
        return asks

    def end(self, policy: Policy, curve: Curve) -> tuple[Ending, float]:
        """How the vote ends, and its seconds."""
        if (lead := find_lead(policy)) is not None:
            return self._count(lead, curve)
        asks = self.list_asks(policy)
        seconds = sum(time_group(self.lens[a:b], curve) for a, b in pairwise(asks))
        return end_at(self.trace, asks[-1]) or self.trace.whole, seconds

    def _count(self, policy: Rule, curve: Curve) -> tuple[Ending, float]:
        """Drive the search that counts after every path."""
        search = CountedSelfConsistency(n=self.trace.cap, policy=policy)
        state, commands = search.start(Problem.from_text(self.trace.problem), 0, LIMITS)
        work, ends = deque(commands), dict[NodeId, int]()
        clock, tokens, seconds = 0, 0, 0.0
        while True:
            while work:
                match work.popleft():
                    case Expand(children=children):
                        ends |= {c.node: clock + self._find_length(c.node) for c in children}
                    case Cluster(nodes=nodes):
                        found = {node: self.answers[node - 1] for node in nodes}
                        state, new = search.tell(state, Clustered(answers=found))
                        work += new
                    case Cancel(nodes=nodes):
                        tokens += sum(self._find_length(n) - (ends.pop(n) - clock) for n in nodes)
                    case Finish(answer=answer):
                        return Ending(right=answer in self.right, tokens=tokens), seconds
                    case _:
                        pass  # what is watched is told below
            first = min(ends, key=lambda node: (ends[node], node))
            seconds += (ends[first] - clock) * curve(len(ends)) / 1e3
            clock = ends.pop(first)
            tokens += self._find_length(first)
            segment = make_segment(self._find_length(first))
            reached = (Reached(node=node, tokens=clock + 1) for node in ends)
            results: tuple[Result, ...] = (Generated(node=first, segment=segment), *reached)
            for result in results:
                state, new = search.tell(state, result)
                work += new

    def _find_length(self, node: NodeId) -> int:
        return self.lens[node - 1]


def make_segment(length: int) -> Segment:
    """A path of which only the length counts."""
    return Segment(
        token_ids=(0,) * length,
        logprobs=(0.0,) * length,
        text="",
        steps=("",),
        finish=FinishReason.STOP,
    )


def time_group(lens: Sequence[int], curve: Curve) -> float:
    """Seconds of a group of paths that are drawn together."""
    ends = [0, *sorted(lens)]
    return sum((b - a) * curve(len(lens) - i) for i, (a, b) in enumerate(pairwise(ends))) / 1e3


def read_votes(path: Path) -> list[Vote]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [make_vote(json.loads(line), str(i)) for i, line in enumerate(file)]


def make_vote(row: dict[str, Any], name: str) -> Vote:
    """Answers are equal where spelling or number decides it."""
    groups: list[str] = []
    answers: list[str | None] = []
    for text in row["texts"]:
        answer = extract_answer(text)
        if answer is not None:
            found = (known for known in groups if decide_equal(answer, known))
            answer = next(found, answer)
            groups.append(answer)
        answers.append(answer)
    right = {a for a in set(groups) if decide_equal(a, row["answer"])}
    stops, checkpoints, tokens = [], [], 0
    for i, length in enumerate(row["lens"], 1):
        tokens += length
        seen = answers[:i]
        counted = Counter(a for a in seen if a is not None)
        leader = max(counted, key=counted.__getitem__, default=None)  # of equals the earlier one
        measured = {
            ENTROPY: measure_certainty(seen),
            SHARE: counted[leader] / i if leader is not None else None,
        }
        known = {name: value for name, value in measured.items() if value is not None}
        checkpoints.append(
            Checkpoint(progress=i, tokens=tokens, answers=counted.total(), measures=known)
        )
        stops.append(Ending(right=leader in right, tokens=tokens))
    trace = RunTrace(
        problem=name,
        cap=len(stops),
        checkpoints=tuple(checkpoints),
        stops=tuple(stops),
        whole=stops[-1],
    )
    return Vote(
        trace=trace, lens=tuple(row["lens"]), answers=tuple(answers), right=frozenset(right)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rule on some votes, beside all paths at once."""

    name: str
    comparison: Comparison
    time: float
    """Seconds by those of all paths at once."""
    changed: float
    """Share of the problems that it answers right where all paths don't, or the other way."""

    def describe(self) -> dict[str, Any]:
        found = self.comparison
        low, high = (round(100 * bound, 2) for bound in found.interval)
        return {
            "rule": self.name,
            "accuracy": round(100 * found.accuracy, 1),
            "difference": [round(100 * found.difference, 2), low, high],
            "tokens": round(found.tokens),
            "saved": round(100 * found.saved, 1),
            "time": round(self.time, 2),
            "changed": round(100 * self.changed, 1),
        }


def judge(name: str, policy: Policy, votes: Sequence[Vote], curve: Curve) -> Row:
    ends = [vote.end(policy, curve) for vote in votes]
    pairs = [(ending, vote.trace.whole) for (ending, _), vote in zip(ends, votes, strict=True)]
    whole = sum(time_group(vote.lens, curve) for vote in votes)
    return Row(
        name=name,
        comparison=compare_endings(pairs),
        time=sum(seconds for _, seconds in ends) / whole,
        changed=sum(ending.right != other.right for ending, other in pairs) / len(pairs),
    )


def name_rule(rule: Rule) -> str:
    measured = ", ".join(f"{name} {value}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect}, {measured}"


def choose(votes: Sequence[Vote], curve: Curve) -> Rule | None:
    """The rule by the lead that changes the fewest decisions within both bounds."""
    rules = [
        Rule(policy=LEAD, detect=detect, thresholds=((LEAD, least),))
        for detect, least in product((3, 4, 5, 6), (0.8, 0.85, 0.9, 0.93, 0.955, 0.97, 0.98, 0.99))
    ]
    rows = [(rule, judge("", rule, votes, curve)) for rule in rules]
    fit = [
        (row.changed, name_rule(rule), rule)
        for rule, row in rows
        if row.comparison.saved >= LEAST_SAVED and row.time <= MAX_TIME
    ]
    return min(fit)[-1] if fit else None


def list_rivals(cap: int) -> dict[str, Policy]:
    usual = build_exit_rule(ExitOptions(), "self_consistency")
    paper = build_paper_rule("self_consistency")
    three_quarters = Rule(policy="static", detect=4, thresholds=((SHARE, 0.75),))
    smaller: dict[str, Policy] = {
        f"{n} paths": Rule(policy="static", detect=n, thresholds=((ENTROPY, 0.0),))
        for n in range(cap, 3, -1)
    }
    rules = {
        "default: ": usual,
        "certainindex: ": paper,
        "certainindex, asked again: ": replace(paper, policy="every_5", detect=4),
        "three quarters agree: ": three_quarters,
        "one by one: ": replace(usual, detect=1),
    }
    return smaller | {lead + name_rule(rule): rule for lead, rule in rules.items()}


def parse_curve(text: str) -> Curve:
    points = [(int(batch), float(ms)) for batch, ms in (p.split(":") for p in text.split(","))]

    def interpolate(batch: int) -> float:
        for (left, low), (right, high) in pairwise(points):
            if batch <= right:
                return low + (high - low) * max(0, batch - left) / (right - left)
        return points[-1][1]

    return interpolate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--steps", default="1:2.7,16:3.0,64:4.0", help="BATCH:MS,…")
    asked = parser.parse_args()
    votes, curve = read_votes(asked.samples), parse_curve(asked.steps)
    middle = len(votes) // 2
    chosen = choose(votes[:middle], curve)
    policies = list_rivals(votes[0].trace.cap)
    if chosen is not None:
        policies["chosen: " + name_rule(chosen)] = chosen
    rows = [judge(name, p, votes[middle:], curve).describe() for name, p in policies.items()]
    for row in rows:
        print(row, flush=True)
    report(steps=asked.steps, chosen=chosen and name_rule(chosen), votes=middle, rows=rows)


if __name__ == "__main__":
    main()
