"""What does each kind of certainty save on recorded answers, at equal accuracy?

    python -m scripts.bench.certainty.votes SAMPLES [--orders 5] [--steps 1:2.7,16:3.0,64:4.0]
        [--kinds counts,thresholds,scores,confidences,probes]

SAMPLES: lines of JSON, or .gz of them, one for each problem: `answer`, `texts` (whole answers to
the problem, or their ends, drawn independently) and `lens` (their tokens). The other kinds need
what `score` adds; problems without it are left out of the kind and of the rows that it is compared
with. Rules are chosen on the first half of the problems (none of the kinds `UNCHOSEN`, which all
problems judge): of each kind that with the fewest tokens whose one-sided 95 % bound on the loss is
within a point. If none keeps the bound, as for few problems, that of the best accuracy is taken. Of
votes with the same tokens, which only weigh their paths otherwise, the best counts. For the lead,
it is also chosen
- of the rules that save a quarter of the tokens and take at most 1.25 times as long as all paths at
  once, the one whose answer is least often right where theirs is wrong, or the reverse

All rows are judged on the second half, with the samples of each problem in several orders, since
only the first ones of an order count. Brackets are 95 % bootstrap intervals over the problems.
Savings at equal accuracy are against as many paths at once, by majority, as are as accurate,
between two numbers of them by a straight line.

A rule by the lead promises that at most 1 - lead of the votes that it stops end with another answer
than all paths would give. So each row says how often that happened, and a table says for each count
of votes how often its leader won.

The votes are those of the product's own searches (`replay`). --steps: milliseconds of a decode step
of a batch, between which is interpolated (by default those of a real 1.5B on an H100). The last
line is JSON.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from flashedge.certainty.calibration import Calibrator, bound_loss
from flashedge.certainty.measures import (
    CONSISTENCY,
    ENTROPY,
    LEAD,
    REWARD,
    count_further,
    find_chance,
    measure_lead,
)
from flashedge.certainty.policies import POLICIES, Policy, Rule, find_lead
from flashedge.certainty.token_confidence import MEAN, MEANS, measure_path
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule, build_paper_rule
from flashedge.scheduling.lengths.distribution import Floats
from flashedge.search.aggregates import AGGREGATES, aggregate
from flashedge.search.base import Finish
from flashedge.search.strategies.best_of_n import BestOfN, SelfConsistency
from flashedge.search.strategies.counted_vote import (
    CountedBestOfN,
    CountedSelfConsistency,
    CountedState,
)
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.tree import Tree
from flashedge.search.voting import Search, choose_by_scores
from flashedge.types import NodeId
from scripts.bench.certainty.replay import Curve, replay
from scripts.bench.certainty.samples import (
    Orders,
    Sample,
    Vote,
    count_leader,
    make_vote,
    read_samples,
    shuffle_votes,
)
from scripts.bench.daemon import report
from scripts.bench.smoke import SMALL, parse_arguments

LEAST_SAVED, MAX_TIME = 0.25, 1.25
MAX_LOSS = 0.01
DRAWS = 1000
"""Resamples of an interval."""
LEASTS = (0.8, 0.85, 0.9, 0.955, 0.98)
"""Thresholds of the lead whose promise is judged."""
FEWEST = 100
"""Votes that a line of `tabulate_leads` needs."""
KINDS = ("counts", "thresholds", "scores", "confidences", "probes")
UNCHOSEN = ("thresholds", "probes")
"""Kinds of which no rule is chosen, so that all problems judge."""
CHAIN = "one chain to its end"
Rules = Mapping[str, Search[Any] | Callable[[Vote], Search[Any]]]
"""By their names, searches or what makes one for a vote."""


# ---------------------------------------------------------------- a rule on votes


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A rule on some votes. All arrays are (orders, problems)."""

    name: str
    right: Floats
    """1 where the answer is right."""
    tokens: Floats
    seconds: Floats
    scored: Floats
    """Tokens of the paths that were scored, by a verifier whose time is not counted."""
    stopped: Floats
    """1 where not all paths were drawn."""
    kept: Floats
    """1 where the answer is that of all paths."""
    lead: Floats
    """See `End.lead`; NaN for None."""


def judge(
    name: str, rule: Search[Any] | Callable[[Vote], Search[Any]], orders: Orders, curve: Curve
) -> Row:
    found = []
    for vote in (vote for votes in orders for vote in votes):
        search = rule if isinstance(rule, Search) else rule(vote)
        end = replay(search, vote, curve)
        is_right, is_kept = vote.is_right(end.answer), end.answer == vote.winner
        is_stopped = end.tokens < sum(sample.tokens for sample in vote.samples)
        lead = end.lead if find_lead(search.policy) else None
        found.append((is_right, end.tokens, end.seconds, end.scored, is_stopped, is_kept, lead))
    shape = (7, len(orders), len(orders[0]))
    return Row(name, *np.array(found, dtype=np.float64).T.reshape(shape))


def describe(row: Row, even: Sequence[Row]) -> dict[str, Any]:
    """A row beside all paths at once, and beside as many as are as accurate. even: the rows of
    so many paths at once, by rising number."""
    right, tokens = row.right.mean(axis=0), row.tokens.mean(axis=0)
    stopped, kept = row.stopped.mean(axis=0), (row.stopped * row.kept).mean(axis=0)
    even_right = np.array([one.right.mean(axis=0) for one in even])
    even_tokens = np.array([one.tokens.mean(axis=0) for one in even])
    even_seconds = np.array([one.seconds.mean(axis=0) for one in even])
    seconds = row.seconds.mean(axis=0)
    whole, problems = even[-1], np.arange(len(right))

    def measure(at: Any) -> tuple[float, ...]:
        accuracies, paid = even_right[:, at].mean(axis=1), even_tokens[:, at].mean(axis=1)
        took = even_seconds[:, at].mean(axis=1)
        accuracy, mine, ended = right[at].mean(), tokens[at].mean(), stopped[at].sum()
        return (
            accuracy - accuracies[-1],
            1 - mine / paid[-1],
            1 - mine / find_equal(accuracy, accuracies, paid),
            1 - seconds[at].mean() / find_equal(accuracy, accuracies, took),
            kept[at].sum() / ended if ended else 1.0,
        )

    rng = np.random.default_rng(0)
    drawn = [measure(rng.choice(problems, len(problems))) for _ in range(DRAWS)]
    found = zip(measure(problems), *np.quantile(drawn, [0.025, 0.975], axis=0), strict=True)
    difference, saved, equal, quicker, share = (
        [round(100 * float(v), 2) for v in one] for one in found
    )
    leads = row.lead[~np.isnan(row.lead)]
    return {
        "rule": row.name,
        "accuracy": round(100 * float(row.right.mean()), 1),
        "difference": difference,
        "tokens": round(float(row.tokens.mean())),
        "saved": saved,
        "saved_at_equal_accuracy": equal,
        "time_saved_at_equal_accuracy": quicker,
        "time": round(float(row.seconds.sum() / whole.seconds.sum()), 2),
        "scored": round(float(row.scored.mean())),
        "stopped": round(100 * float(row.stopped.mean()), 1),
        "kept": share,
        "mean_lead": round(100 * float(leads.mean()), 1) if len(leads) else None,
    }


def find_equal(accuracy: float, accuracies: Floats, costs: Floats) -> float:
    """The cost of as many paths at once as are as accurate, between two numbers by a straight line.
    All paths, where no number is. accuracies, costs: by the number of paths."""
    rising = np.maximum.accumulate(accuracies)
    at = int(np.searchsorted(rising, accuracy - 1e-9))
    if at in (0, len(rising)):
        return float(costs[min(at, len(rising) - 1)])
    share = (accuracy - rising[at - 1]) / (rising[at] - rising[at - 1])
    return float(costs[at - 1] + share * (costs[at] - costs[at - 1]))


def tabulate_leads(orders: Orders) -> Iterator[dict[str, Any]]:
    """How often the leader of a vote wins, by the counts of the paths so far: of paths as they were
    drawn, and of those that end first when all begin together."""
    said: dict[tuple[int, int, int], float] = {}
    won: dict[tuple[int, int, int, bool], list[bool]] = defaultdict(list)
    for vote in (vote for votes in orders for vote in votes):
        samples, cap = vote.samples, len(vote.samples)
        ending = sorted(range(cap), key=lambda i: samples[i].tokens)
        for is_shortest, order in ((False, range(cap)), (True, ending)):
            for taken in range(1, cap):
                seen = [samples[i].answer for i in order[:taken]]
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


def tabulate_signals(votes: Sequence[Vote]) -> Iterator[dict[str, Any]]:
    """How often a right answer has a higher number than a wrong one to the same problem (the AUC
    within problems), by the scores and by the confidences. It needs no choice, so all votes
    count."""
    ways = [(by, w) for by, w in product(MEANS, (16, 64, 2048)) if by != MEAN or w == 2048]
    signals: list[tuple[str, str, Callable[[Sample], float]]] = [
        ("counts", "fewer tokens", lambda s: -s.tokens),
        *(("scores", f"score, {how}", partial(_read_score, how)) for how in AGGREGATES),
        *(
            ("confidences", f"confidence, {by} of {w}", partial(_read_confidence, by, w))
            for by, w in ways
        ),
    ]
    for kind, name, read in signals:
        counted = []
        for vote in select(kind, votes):
            right = [read(s) for s in vote.samples if s.answer in vote.right]
            wrong = [read(s) for s in vote.samples if s.answer not in vote.right]
            pairs = np.subtract.outer(right, wrong)
            counted.append(((pairs > 0).sum() + (pairs == 0).sum() / 2, pairs.size))
        if not counted:
            continue
        table = np.array(counted)

        def measure(at: Any, table: Floats = table) -> float:
            won, pairs = table[at].sum(axis=0)
            return float(won / pairs) if pairs else 0.5

        rng = np.random.default_rng(0)
        drawn = [measure(rng.integers(len(table), size=len(table))) for _ in range(DRAWS)]
        found = (measure(slice(None)), *np.quantile(drawn, [0.025, 0.975]))
        yield {
            "signal": name,
            "auc": [round(float(value), 3) for value in found],
            "problems": int((table[:, 1] > 0).sum()),
        }


def _read_score(how: str, sample: Sample) -> float:
    return aggregate(sample.scores, how)


def _read_confidence(by: str, window: int, sample: Sample) -> float:
    return measure_path(sample.confidences, window, by)


# ---------------------------------------------------------------- the choice


def choose(rules: Rules, whole: Row, votes: Sequence[Vote], curve: Curve) -> Rules:
    """The rule with the fewest tokens that loses at most MAX_LOSS against `whole`, with 95 %
    confidence; of equally many the most accurate. Where none does, the most accurate."""

    def rank(name: str) -> tuple[float, ...]:
        row = judge(name, rules[name], [votes], curve)
        gained, lost = (row.right > whole.right).sum(), (row.right < whole.right).sum()
        is_safe = bound_loss(int(lost), int(gained), len(votes)) <= MAX_LOSS
        tokens, right = row.tokens.sum(), row.right.sum()
        return (0, tokens, -right) if is_safe else (1, -right, tokens)

    ranked = {name: rank(name) for name in rules}
    best = min(rules, key=ranked.__getitem__)
    how = "most accurate" if ranked[best][0] else "fewest tokens"
    return {f"chosen, {how}: {best}": rules[best]}


def choose_in_time(rules: Rules, whole: Row, votes: Sequence[Vote], curve: Curve) -> Rules:
    """The rule with the fewest changed decisions within LEAST_SAVED and MAX_TIME, if there is
    one."""
    found: list[tuple[int, str]] = []
    for name, rule in rules.items():
        row = judge(name, rule, [votes], curve)
        changed = int((row.right != whole.right).sum())
        is_short = row.tokens.sum() <= (1 - LEAST_SAVED) * whole.tokens.sum()
        if is_short and row.seconds.sum() <= MAX_TIME * whole.seconds.sum():
            found.append((changed, name))
    return {f"chosen, in time: {name}": rules[name] for _, name in sorted(found)[:1]}


# ---------------------------------------------------------------- the rules of each kind


def name_rule(rule: Rule) -> str:
    measured = ", ".join(f"{name} {value}" for name, value in rule.thresholds)
    return f"{rule.policy} from {rule.detect}, {measured}"


def list_leads(cap: int) -> list[Rule]:
    grid = product(sorted({1, 3, 4, 5, 6, cap}), (0.8, 0.85, 0.9, 0.93, 0.955, 0.97, 0.98))
    return [Rule(policy=LEAD, detect=d, thresholds=((LEAD, least),)) for d, least in grid]


def count_paths(cap: int, policy: Policy) -> Search[Any]:
    """A vote by majority."""
    kind = CountedSelfConsistency if find_lead(policy) else SelfConsistency
    return kind(n=cap, policy=policy)


def draw_smaller(cap: int, paths: int) -> Search[Any]:
    """So many paths at once, however they end."""
    at_once = Rule(policy="static", detect=paths, thresholds=((ENTROPY, 0.0),))
    return SelfConsistency(n=cap, policy=at_once)


def list_counts(votes: Sequence[Vote], whole: Row, curve: Curve) -> Rules:
    """Rules by the counts of the answers. votes: on which rules are chosen."""
    cap = len(votes[0].samples)
    usual = build_exit_rule(ExitOptions(), "self_consistency")
    paper = build_paper_rule("self_consistency")
    rules = {
        "default: ": usual,
        "certainindex: ": paper,
        "certainindex, asked again: ": replace(paper, policy="every_5", detect=4),
        "three quarters agree: ": Rule(policy="static", detect=4, thresholds=((ENTROPY, 0.55),)),
    }
    for least in LEASTS:
        lead = replace(usual, thresholds=((LEAD, least),))
        rules |= {f"{least}: ": lead, f"{least}, all started at once: ": replace(lead, detect=cap)}
        rules[f"{least}, one path after the other: "] = replace(lead, policy="every_step", detect=1)
    traces = [vote.build_trace() for vote in votes]
    for name in POLICIES:
        if (rule := Calibrator(traces, name, [ENTROPY]).find_best(MAX_LOSS)) is not None:
            rules[f"calibrated, {name}: "] = rule
    found = {about + name_rule(rule): count_paths(cap, rule) for about, rule in rules.items()}
    leads = {name_rule(rule): count_paths(cap, rule) for rule in list_leads(cap)}
    chosen = choose_in_time(leads, whole, votes, curve)
    for detect in sorted({1, 4, cap}):
        some = {name: leads[name] for name in leads if f" {detect}," in name}
        chosen = {**chosen, **choose(some, whole, votes, curve)}
    return {**found, **chosen}


def list_scored(votes: Sequence[Vote], whole: Row, curve: Curve) -> Rules:
    """Rules by the scores of a verifier."""
    cap = len(votes[0].samples)
    voting = {f"weighted vote, {how}": BestOfN(n=cap, aggregate=how) for how in AGGREGATES}
    best = {
        f"best of {cap}, {how}": replace(voting[f"weighted vote, {how}"], selection="best")
        for how in AGGREGATES
    }
    weighted = choose(voting, whole, votes, curve)
    (search,) = weighted.values()
    assert isinstance(search, BestOfN)
    how = search.aggregate
    mean = np.mean([aggregate(s.scores, how) for vote in votes for s in vote.samples])
    usual = build_exit_rule(ExitOptions(), "best_of_n")
    rewards = {}
    for policy, detect, least in product(
        ("static", "every_step"), (1, 2, 4), (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
    ):
        rule = Rule(policy=policy, detect=detect, thresholds=((REWARD, least),))
        rewards[name_rule(rule)] = replace(search, policy=rule)
    leads = {
        f"{name_rule(rule)}, by weights": partial(WeighedVote.build, rule, how, float(mean) or 1.0)
        for rule in list_leads(cap)
    }
    by_default = f"{name_rule(usual)}, by weights"
    return {
        **weighted,
        **choose(best, whole, votes, curve),
        f"lead by counts, then weighted: {name_rule(usual)}": CountedBestOfN(
            n=cap, policy=usual, aggregate=how
        ),
        f"default: {by_default}": leads[by_default],
        **choose(leads, whole, votes, curve),
        **choose(rewards, whole, votes, curve),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedVote(CountedSelfConsistency):
    """The vote by the lead, in which a path counts what the verifier says of it."""

    weights: tuple[float, ...]
    """By sample: its score over the mean of all scores."""
    selection: str = "weighted"

    @classmethod
    def build(cls, rule: Rule, how: str, mean: float, vote: Vote) -> "WeighedVote":
        """how: the aggregate of its step scores that is a path's score; mean: of all paths."""
        weights = tuple(aggregate(sample.scores, how) / mean for sample in vote.samples)
        return cls(n=len(weights), policy=rule, weights=weights)

    def elect(self, tree: Tree, nodes: Sequence[NodeId]) -> Finish:
        scores = {node: self.weights[tree[node].index] for node in nodes}
        return choose_by_scores(tree, scores, by=self.selection)

    def count_wanted(self, state: CountedState) -> int:
        first, second = self._weigh_two(state.tree, state.complete)
        left = self.n - len(state.complete)
        return count_further(first, second, left, self._lead.least) if first else self.n

    def measure(self, tree: Tree, paths: Sequence[NodeId]) -> dict[str, float]:
        first, second = self._weigh_two(tree, paths)
        return {LEAD: find_chance(first, second, self.n - len(paths))} if first else {}

    def _weigh_two(self, tree: Tree, paths: Sequence[NodeId]) -> tuple[float, float]:
        """The weights of the two answers that have most."""
        first, second = (*(vote.weight for vote in self.elect(tree, paths).votes[:2]), 0, 0)[:2]
        return first, second


def list_confident(votes: Sequence[Vote], whole: Row, curve: Curve) -> Rules:
    """DeepConf, offline and online, as its paper has it and with what suits short answers."""
    cap, keeps, windows = len(votes[0].samples), (0.1, 0.25, 0.5, 0.75, 0.9), (16, 64, 128, 2048)
    agreed = build_paper_rule("deepconf")
    offline = {
        f"deepconf offline, {by}, window {window}, keep {keep}": DeepConf(
            n=cap, by=by, window=window, keep=keep, stops=False
        )
        for by, window, keep in product(MEANS, windows, (*keeps, 1.0))
    }
    online = {
        f"deepconf, warm-up {warm_up}, window {window}, keep {keep}{until}": DeepConf(
            n=cap, warm_up=warm_up, window=window, keep=keep, policy=policy
        )
        for warm_up, window, keep, (until, policy) in product(
            (2, 4), windows, keeps, (("", None), (f", {name_rule(agreed)}", agreed))
        )
    }
    return {
        "deepconf with its defaults": DeepConf(n=cap, policy=agreed),
        "deepconf with its defaults, all paths": DeepConf(n=cap),
        **{
            f"deepconf offline, keep {keep}": DeepConf(n=cap, keep=keep, stops=False)
            for keep in (0.1, 0.9, 1.0)
        },
        **choose(offline, whole, votes, curve),
        **choose(online, whole, votes, curve),
    }


def list_thresholds(votes: Sequence[Vote]) -> Rules:
    """Certainindex by its threshold and the paths after which it is asked once (the paper's Fig. 9
    and 14)."""
    cap = len(votes[0].samples)
    rules = (
        Rule(policy="static", detect=detect, thresholds=((ENTROPY, least),))
        for detect, least in product(range(2, max(3, cap - 2)), (0.4, 0.55, 0.7))
    )
    return {name_rule(rule): count_paths(cap, rule) for rule in rules}


def list_probed(votes: Sequence[Vote]) -> Rules:
    """A chain that is probed, against the same chain to its end."""
    usual = ProbedCot(probe_tokens=votes[0].probe_tokens, policy=build_paper_rule("probed_cot"))
    found = {}
    for window, least in product((2, 3, 4, 5), (0.6, 1.0)):
        rule = Rule(policy="every_step", detect=1, thresholds=((CONSISTENCY, least),))
        about = "default: " if (window, rule) == (usual.window, usual.policy) else ""
        search = replace(usual, window=window, policy=rule)
        found[f"{about}probed, window {window}, {name_rule(rule)}"] = search
    return {**found, "default, doubts behind the answer not drawn": replace(usual, tail_tokens=0)}


# ---------------------------------------------------------------- the whole


def parse_curve(text: str) -> Curve:
    points = [(int(batch), float(ms)) for batch, ms in (p.split(":") for p in text.split(","))]

    def interpolate(batch: int) -> float:
        for (left, low), (right, high) in pairwise(points):
            if batch <= right:
                return low + (high - low) * max(0, batch - left) / (right - left)
        return points[-1][1]

    return interpolate


def list_rules(kind: str, votes: Sequence[Vote], whole: Row, curve: Curve) -> Rules:
    if kind in UNCHOSEN:
        return list_probed(votes) if kind == "probes" else list_thresholds(votes)
    lists = {"counts": list_counts, "scores": list_scored, "confidences": list_confident}
    return lists[kind](votes, whole, curve)


def select(kind: str, votes: Sequence[Vote]) -> list[Vote]:
    """The votes to which `score` has added what the rules of a kind need."""
    if kind == "probes":
        return [vote for vote in votes if vote.probe_tokens]
    return [
        vote
        for vote in votes
        if kind in ("counts", "thresholds") or all(getattr(s, kind) for s in vote.samples)
    ]


def judge_kind(
    kind: str, votes: Sequence[Vote], num_orders: int, curve: Curve
) -> Iterator[dict[str, Any]]:
    """The rows of a kind, on the second half of the votes; rules are chosen on the first half."""
    chosen_on, orders = (votes, [votes]) if kind in UNCHOSEN else split(votes, num_orders)
    cap = len(votes[0].samples)
    even = [judge(f"{n} paths", draw_smaller(cap, n), orders, curve) for n in range(1, cap + 1)]
    whole = judge("", draw_smaller(cap, cap), [chosen_on], curve)
    chosen = 0 if kind in UNCHOSEN else len(chosen_on)
    counts = {"kind": kind, "chosen_on": chosen, "judged_on": len(orders[0])}
    rows, base = even[: cap // 2 : -1], even
    if kind == "probes":
        base = [judge(CHAIN, ProbedCot(probe_tokens=0), orders, curve)]
        rows.append(base[0])
    yield from (describe(row, even) | counts for row in rows)
    known: dict[Any, Row] = {}
    for name, rule in list_rules(kind, chosen_on, whole, curve).items():
        if rule not in known:
            known[rule] = judge("", rule, orders, curve)
        yield describe(replace(known[rule], name=name), base) | counts


def split(votes: Sequence[Vote], num_orders: int) -> tuple[Sequence[Vote], Orders]:
    """The votes on which rules are chosen, and those on which they are judged."""
    middle = len(votes) // 2
    return votes[:middle], shuffle_votes(votes[middle:], num_orders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--orders", type=int, default=5, help="of each problem's samples")
    parser.add_argument("--steps", default="1:2.7,16:3.0,64:4.0", help="BATCH:MS,…")
    parser.add_argument("--kinds", default=KINDS, type=lambda s: s.split(","))
    parser.add_argument("--limit", type=int, help="problems")
    asked = parse_arguments(parser, samples=SMALL / "scored_answers.jsonl.gz", orders=2)
    rows = islice(read_samples(asked.samples), asked.limit)
    votes = [make_vote(row, str(i)) for i, row in enumerate(rows)]
    curve, found = parse_curve(asked.steps), []
    left_out = {kind: len(votes) - len(select(kind, votes)) for kind in asked.kinds}
    print("problems left out, since they lack what the kind needs:", left_out, flush=True)
    for kind in asked.kinds:
        some = select(kind, votes)
        for row in judge_kind(kind, some, asked.orders, curve) if len(some) > 1 else ():
            found.append(row)
            print(row, flush=True)
    leads = list(tabulate_leads(split(votes, asked.orders)[1])) if "counts" in asked.kinds else []
    signals = list(tabulate_signals(votes))
    for line in (*leads, *signals):
        print(line)
    report(
        steps=asked.steps,
        orders=asked.orders,
        problems=len(votes),
        left_out=left_out,
        rows=found,
        leads=leads,
        signals=signals,
    )


if __name__ == "__main__":
    main()
