"""What does stopping a vote early save on real answers, and is it as rarely wrong as it says?

    python -m scripts.bench.certainty.votes SAMPLES [--orders 5] [--steps 1:2.7,16:3.0,64:4.0]

SAMPLES: lines of JSON, or .gz of them, one for each problem: `answer`, `texts` (whole answers to
the problem, or their ends, drawn independently) and `lens` (their tokens). Rules are chosen on the
first half of the problems, in two ways:

- of the rules by the lead that save a quarter of the tokens and take at most 1.25 times as long as
  all paths at once, the one whose answer is least often right where theirs is wrong, or the reverse
- of each kind of rule, the one with the fewest tokens whose one-sided 95 % bound on the loss of
  accuracy is within a point (for the paper's, by the product's own calibration)

All rows are judged on the second half, with the samples of each problem in several orders, since
only the first ones of an order count. Brackets are 95 % bootstrap intervals over the problems.
Savings at equal accuracy are against as many paths at once as are as accurate, between two numbers
of them by a straight line.

A rule by the lead promises that at most 1 - lead of the votes that it stops end with another answer
than all paths would give. So each row says how often that happened, and a table says for each count
of votes how often its leader won.

The votes are those of the product's own search, in a batch that gives each path a token a step: the
paths that begin together end the shortest first, and what an open path has drawn by a stop is paid.
Of rivals in groups, a group is drawn after the other, each as long as its longest path. --steps:
milliseconds of a decode step of a batch, between which is interpolated (by default those of a real
1.5B on an H100). The last line is JSON.
"""

import argparse
import gzip
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.certainty.calibration import Calibrator, Ending, RunTrace, bound_loss
from flashedge.certainty.measures import ENTROPY, LEAD, Checkpoint, measure_certainty, measure_lead
from flashedge.certainty.policies import POLICIES, Policy, Rule, find_lead
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule, build_paper_rule
from flashedge.scheduling.lengths.distribution import Floats
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
MAX_LOSS = 0.01
LIMITS = Limits(max_path_tokens=1 << 30)
SHARE = "share"
"""The measure of a rival: the share of the paths that gave the most frequent answer."""
DRAWS = 1000
"""Resamples of an interval."""
LEASTS = (0.8, 0.85, 0.9, 0.955, 0.98)
"""Thresholds of the lead whose promise is judged."""
FEWEST = 100
"""Votes that a line of `tabulate_leads` needs."""
Curve = Callable[[int], float]
"""Batch -> milliseconds of a step."""
Orders = Sequence[Sequence["Vote"]]
"""(orders, problems) The same votes with the samples of each problem in several orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a vote ended under a rule."""

    answer: str | None
    """By group, like `Vote.answers`."""
    tokens: int
    seconds: float
    lead: float | None
    """How sure the rule was that all paths would give this answer. None if it drew them all, or
    does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Independent answers to one problem, with what a policy would see after each."""

    trace: RunTrace
    lens: tuple[int, ...]
    answers: tuple[str | None, ...]
    """By group: equal answers are the same text."""
    right: frozenset[str]
    """The groups that are right."""

    @classmethod
    def build(
        cls, name: str, lens: Sequence[int], answers: Sequence[str | None], right: frozenset[str]
    ) -> "Vote":
        cap = len(lens)
        stops, checkpoints = [], []
        for i in range(1, cap + 1):
            seen, tokens = answers[:i], sum(lens[:i])
            leader, first, _ = count_leader(seen)
            measured = {
                ENTROPY: measure_certainty(seen),
                LEAD: measure_lead(seen, cap),
                SHARE: first / i if first else None,
            }
            known = {name: value for name, value in measured.items() if value is not None}
            checkpoints.append(
                Checkpoint(progress=i, tokens=tokens, answers=i, measures=known, answer=leader)
            )
            stops.append(Ending(right=leader in right, tokens=tokens))
        trace = RunTrace(
            problem=name,
            cap=cap,
            checkpoints=tuple(checkpoints),
            stops=tuple(stops),
            whole=stops[-1],
        )
        return cls(trace=trace, lens=tuple(lens), answers=tuple(answers), right=right)

    @property
    def winner(self) -> str | None:
        """The answer of all paths."""
        return self.trace.checkpoints[-1].answer

    def take_order(self, order: Sequence[int]) -> "Vote":
        """The same samples in another order."""
        lens, answers = [self.lens[i] for i in order], [self.answers[i] for i in order]
        return Vote.build(self.trace.problem, lens, answers, self.right)

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

    def end(self, policy: Policy, curve: Curve) -> End:
        if (lead := find_lead(policy)) is not None:
            return self._count(lead, curve)
        asks = self.list_asks(policy)
        at = self.trace.checkpoints[asks[-1] - 1]
        is_whole = asks[-1] == self.trace.cap
        return End(
            answer=at.answer,
            tokens=at.tokens,
            seconds=sum(time_group(self.lens[a:b], curve) for a, b in pairwise(asks)),
            lead=None if is_whole else at.measures.get(LEAD),
        )

    def _count(self, policy: Rule, curve: Curve) -> End:
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
                        is_whole = len(state.complete) == self.trace.cap
                        lead = None if is_whole else state.history[-1].measures.get(LEAD)
                        return End(answer=answer, tokens=tokens, seconds=seconds, lead=lead)
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


def count_leader(answers: Iterable[str | None]) -> tuple[str | None, int, int]:
    """(answer, count, count of the next one) of the most frequent answer; of equals the earlier."""
    counted = Counter(a for a in answers if a is not None)
    leader = max(counted, key=counted.__getitem__, default=None)
    first, second = (*(count for _, count in counted.most_common(2)), 0, 0)[:2]
    return leader, first, second


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
    return Vote.build(name, row["lens"], answers, frozenset(right))


def shuffle_votes(votes: Sequence[Vote], count: int) -> Orders:
    """The votes as drawn, and in count - 1 further orders."""
    draw, cap = Random(0), votes[0].trace.cap
    shuffled = (
        [vote.take_order(draw.sample(range(cap), cap)) for vote in votes] for _ in range(count - 1)
    )
    return [votes, *shuffled]


# ---------------------------------------------------------------- a rule on votes


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A rule on some votes. All arrays are (orders, problems)."""

    name: str
    right: Floats
    """1 where the answer is right."""
    tokens: Floats
    seconds: Floats
    stopped: Floats
    """1 where not all paths were drawn."""
    kept: Floats
    """1 where the answer is that of all paths."""
    lead: Floats
    """See `End.lead`; NaN for None."""


def judge(name: str, policy: Policy, orders: Orders, curve: Curve) -> Row:
    found = []
    for vote in (vote for votes in orders for vote in votes):
        end = vote.end(policy, curve)
        is_right, is_kept = end.answer in vote.right, end.answer == vote.winner
        is_stopped = end.tokens < sum(vote.lens)
        found.append((is_right, end.tokens, end.seconds, is_stopped, is_kept, end.lead))
    shape = (6, len(orders), len(orders[0]))
    return Row(name, *np.array(found, dtype=np.float64).T.reshape(shape))


def describe(row: Row, even: Sequence[Row]) -> dict[str, Any]:
    """A row beside all paths at once, and beside as many as are as accurate. even: the rows of
    so many paths at once, by rising number."""
    right, tokens = row.right.mean(axis=0), row.tokens.mean(axis=0)
    stopped, kept = row.stopped.mean(axis=0), (row.stopped * row.kept).mean(axis=0)
    even_right = np.array([one.right.mean(axis=0) for one in even])
    even_tokens = np.array([one.tokens.mean(axis=0) for one in even])
    whole, problems = even[-1], np.arange(len(right))

    def measure(at: Any) -> tuple[float, ...]:
        accuracies, paid = even_right[:, at].mean(axis=1), even_tokens[:, at].mean(axis=1)
        mine, ended = tokens[at].mean(), stopped[at].sum()
        return (
            right[at].mean() - accuracies[-1],
            1 - mine / paid[-1],
            1 - mine / find_equal_tokens(right[at].mean(), accuracies, paid),
            kept[at].sum() / ended if ended else 1.0,
        )

    rng = np.random.default_rng(0)
    drawn = [measure(rng.choice(problems, len(problems))) for _ in range(DRAWS)]
    found = zip(measure(problems), *np.quantile(drawn, [0.025, 0.975], axis=0), strict=True)
    difference, saved, equal, share = ([round(100 * float(v), 2) for v in one] for one in found)
    leads = row.lead[~np.isnan(row.lead)]
    return {
        "rule": row.name,
        "accuracy": round(100 * float(row.right.mean()), 1),
        "difference": difference,
        "tokens": round(float(row.tokens.mean())),
        "saved": saved,
        "saved_at_equal_accuracy": equal,
        "time": round(float(row.seconds.sum() / whole.seconds.sum()), 2),
        "stopped": round(100 * float(row.stopped.mean()), 1),
        "kept": share,
        "mean_lead": round(100 * float(leads.mean()), 1) if len(leads) else None,
    }


def find_equal_tokens(accuracy: float, accuracies: Floats, tokens: Floats) -> float:
    """Tokens of as many paths at once as are as accurate, between two numbers by a straight line.
    All paths, where no number is. accuracies, tokens: by the number of paths."""
    rising = np.maximum.accumulate(accuracies)
    at = int(np.searchsorted(rising, accuracy - 1e-9))
    if at in (0, len(rising)):
        return float(tokens[min(at, len(rising) - 1)])
    share = (accuracy - rising[at - 1]) / (rising[at] - rising[at - 1])
    return float(tokens[at - 1] + share * (tokens[at] - tokens[at - 1]))


def tabulate_leads(orders: Orders) -> Iterator[dict[str, Any]]:
    """How often the leader of a vote wins, by the counts of the paths so far: of paths as they were
    drawn, and of those that end first when all begin together."""
    said: dict[tuple[int, int, int], float] = {}
    won: dict[tuple[int, int, int, bool], list[bool]] = defaultdict(list)
    for vote in (vote for votes in orders for vote in votes):
        cap = vote.trace.cap
        ending = sorted(range(cap), key=vote.lens.__getitem__)
        for is_shortest, order in ((False, range(cap)), (True, ending)):
            for taken in range(1, cap):
                seen = [vote.answers[i] for i in order[:taken]]
                leader, first, second = count_leader(seen)
                if (lead := measure_lead(seen, cap)) is not None:
                    said[taken, first, second] = lead
                    won[taken, first, second, is_shortest].append(leader == vote.winner)
    for key, lead in sorted(said.items()):
        drawn, shortest = won[(*key, False)], won[(*key, True)]
        if min(len(drawn), len(shortest)) >= FEWEST and lead < 1:
            yield {
                "paths": key[0],
                "first": key[1],
                "second": key[2],
                "said": round(100 * lead, 1),
                "won_as_drawn": round(100 * float(np.mean(drawn)), 1),
                "won_shortest_first": round(100 * float(np.mean(shortest)), 1),
                "votes": len(drawn) // len(orders),
            }


# ---------------------------------------------------------------- the choice


def name_rule(rule: Rule) -> str:
    measured = ", ".join(f"{name} {value}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect}, {measured}"


def choose_leads(votes: Sequence[Vote], curve: Curve) -> dict[str, Policy]:
    """Rules by the lead: that with the fewest changed decisions within LEAST_SAVED and MAX_TIME,
    and, by the paths started at the start, those with the fewest tokens within MAX_LOSS."""
    cap = len(votes[0].lens)
    whole = judge("", build_smaller(cap), [votes], curve)
    in_time: list[tuple[int, str, Rule]] = []
    fewest: dict[int, tuple[float, Rule]] = {}
    for detect, least in product((1, 3, 4, 5, 6, cap), (0.8, 0.85, 0.9, 0.93, 0.955, 0.97, 0.98)):
        rule = Rule(policy=LEAD, detect=detect, thresholds=((LEAD, least),))
        row = judge("", rule, [votes], curve)
        gained, lost = (row.right > whole.right).sum(), (row.right < whole.right).sum()
        tokens = row.tokens.sum() / whole.tokens.sum()
        if tokens <= 1 - LEAST_SAVED and row.seconds.sum() <= MAX_TIME * whole.seconds.sum():
            in_time.append((gained + lost, name_rule(rule), rule))
        is_safe = bound_loss(int(lost), int(gained), len(votes)) <= MAX_LOSS
        if is_safe and (detect not in fewest or tokens < fewest[detect][0]):
            fewest[detect] = tokens, rule
    chosen = [("in time", min(in_time)[-1])] if in_time else []
    chosen += [("fewest tokens", fewest[detect][1]) for detect in (1, 4, cap) if detect in fewest]
    return {f"chosen, {how}: {name_rule(rule)}": rule for how, rule in chosen}


def build_smaller(paths: int) -> Rule:
    """So many paths at once, however they end."""
    return Rule(policy="static", detect=paths, thresholds=((ENTROPY, 0.0),))


def choose_paper_rules(votes: Sequence[Vote]) -> dict[str, Policy]:
    """The paper's policies with the thresholds that the product's calibration chooses."""
    traces = [vote.trace for vote in votes]
    found = (Calibrator(traces, name, [ENTROPY]).find_best(MAX_LOSS) for name in POLICIES)
    return {f"calibrated: {name_rule(rule)}": rule for rule in found if rule is not None}


def list_rivals(cap: int) -> dict[str, Policy]:
    usual = build_exit_rule(ExitOptions(), "self_consistency")
    paper = build_paper_rule("self_consistency")
    rules = {
        "default: ": usual,
        "certainindex: ": paper,
        "certainindex, asked again: ": replace(paper, policy="every_5", detect=4),
        "three quarters agree: ": Rule(policy="static", detect=4, thresholds=((SHARE, 0.75),)),
    }
    for least in LEASTS:
        lead = replace(usual, thresholds=((LEAD, least),))
        one_by_one = replace(lead, policy="every_step", detect=1)
        rules |= {f"{least}: ": lead, f"{least}, one path after the other: ": one_by_one}
        rules[f"{least}, all started at once: "] = replace(lead, detect=cap)
    return {about + name_rule(rule): rule for about, rule in rules.items()}


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
    parser.add_argument("--orders", type=int, default=5, help="of each problem's samples")
    parser.add_argument("--steps", default="1:2.7,16:3.0,64:4.0", help="BATCH:MS,…")
    asked = parser.parse_args()
    votes, curve = read_votes(asked.samples), parse_curve(asked.steps)
    middle, cap = len(votes) // 2, len(votes[0].lens)
    chosen = choose_leads(votes[:middle], curve) | choose_paper_rules(votes[:middle])
    orders = shuffle_votes(votes[middle:], asked.orders)
    even = [judge(f"{n} paths", build_smaller(n), orders, curve) for n in range(1, cap + 1)]
    rules = list_rivals(cap) | chosen
    rows = [describe(row, even) for row in even[: cap // 2 : -1]]
    for row in rows:
        print(row, flush=True)
    known: dict[Policy, dict[str, Any]] = {}
    for name, policy in rules.items():
        if policy not in known:
            known[policy] = describe(judge("", policy, orders, curve), even)
        rows.append({**known[policy], "rule": name})
        print(rows[-1], flush=True)
    leads = list(tabulate_leads(orders))
    for line in leads:
        print(line)
    report(steps=asked.steps, orders=asked.orders, votes=middle, rows=rows, leads=leads)


if __name__ == "__main__":
    main()
