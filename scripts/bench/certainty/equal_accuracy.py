"""Tokens that early exits save at equal accuracy (arXiv 2412.20993 Figs. 6, 7).

A policy that stops early is compared with what a user could do without it: ask for fewer paths.
Policy, cap and thresholds are chosen on calibration problems alone, by the fewest tokens among the
candidates whose one-sided 95 % bound on the loss of accuracy, against n, is within `--max-loss`.
The even policy with a smaller cap is one of the candidates. The choice is then replayed on held-out
problems, where it is compared with the *equal even cap*: the smallest cap of the even policy that
is at most `--tie` less accurate than the choice. The tie rule favours the even policy. If no even
cap is as accurate, the comparison is with the whole of n.

Intervals are 95 % bootstrap intervals over held-out problems; the equal even cap is looked for anew
in each resample. A cap below n is a whole run ended there, which is exact for self-consistency,
MCTS, and REBASE in trees whose `width` (`--options`) divides the caps. With `--caps` all policies,
the even one too, are compared at these caps only, so give them for REBASE: a whole run ended in the
middle of a tree has paid for all of that tree.

    python -m scripts.bench.certainty.equal_accuracy --strategy self_consistency -n 30 \\
        --problems tests/data/heldout.jsonl

The first call writes 1,000 calibration problems to runs/certainty/ and makes 1,500 whole runs.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashedge.certainty.calibration import (
    Comparison,
    Ending,
    Grid,
    RunTrace,
    compare_endings,
    end_at_cap,
    replay,
)
from flashedge.certainty.policies import POLICIES, Rule
from flashedge.runtime.request.early_exit import build_paper_rule
from scripts.bench.certainty.whole_runs import CALIBRATION, load_traces, write_calibration_problems

EVEN = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A policy with its cap, and how it did on the calibration problems."""

    policy: str
    """One of POLICIES, or EVEN."""
    cap: int
    rule: Rule | None
    """None for the even policy."""
    calibration: Comparison
    """Against the whole of n."""


def main() -> None:
    options = parse_options()
    if not options.calibration.exists():
        write_calibration_problems(options.calibration, 1000, options.problems)
    run = (options.strategy, options.n, options.options)
    calibration = load_traces(options.calibration, *run, limit=options.calibration_limit)
    heldout = load_traces(options.problems, *run, limit=options.limit)
    shared = {t.problem for t in calibration} & {t.problem for t in heldout}
    if shared:
        raise SystemExit(f"{len(shared)} held-out problems are among the calibration problems")
    usual = build_paper_rule(options.strategy)
    measures = [measure for measure, _ in usual.thresholds]
    caps = options.caps or sorted({round(options.n * k / 4) for k in (1, 2, 3, 4)} - {0})
    even_caps = options.caps or list_caps(calibration)
    candidates = propose_candidates(
        calibration, options.policies, caps, measures, options.max_loss, even_caps
    )
    report = build_report(
        candidates,
        heldout,
        options.caps or list_caps(heldout),
        tie=options.tie,
        draws=options.draws,
    )
    print(format_table(report["rows"]))
    settings = {
        "strategy": options.strategy,
        "n": options.n,
        "options": options.options,
        "caps": caps,
        "max_loss": options.max_loss,
        "tie": options.tie,
        "calibration_problems": len(calibration),
        "heldout_problems": len(heldout),
    }
    print(json.dumps({**settings, **report}))


# ---------------------------------------------------------------- choice


def propose_candidates(
    traces: Sequence[RunTrace],
    policies: Sequence[str],
    caps: Sequence[int],
    measures: Sequence[str],
    max_loss: float,
    even_caps: Sequence[int],
) -> list[Candidate]:
    """Return the cheapest candidate of each policy, and of the even policy, that keeps the bound.

    caps: of the policies; even_caps: of the even policy.

    A policy none of whose candidates does is left out. The even policy always has one: the whole.
    """
    found = [_choose_even(traces, max_loss, even_caps)]
    for policy in policies:
        best: Candidate | None = None
        for cap in caps:
            lowered = [lower_cap(trace, cap) for trace in traces]
            for rule in Grid.build(lowered, measures).propose_rules(policy):
                compared = compare(traces, cap, rule)
                if compared.loss_bound > max_loss:
                    continue
                if best is None or compared.tokens < best.calibration.tokens:
                    best = Candidate(policy=policy, cap=cap, rule=rule, calibration=compared)
        if best is not None:
            found.append(best)
    return found


def compare(traces: Sequence[RunTrace], cap: int, rule: Rule | None) -> Comparison:
    """Compare runs under a rule and cap with the same runs at the whole of n."""
    return compare_endings(list(zip(end_runs(traces, cap, rule), _wholes(traces), strict=True)))


def end_runs(traces: Sequence[RunTrace], cap: int, rule: Rule | None) -> list[Ending]:
    """Return how each run ends under a rule and cap. None is the even policy."""
    if rule is None:
        return [end_at_cap(trace, cap) for trace in traces]
    return [replay(lower_cap(trace, cap), rule) for trace in traces]


def lower_cap(trace: RunTrace, cap: int) -> RunTrace:
    """Return the run with a smaller cap, ended at its first checkpoint at or beyond it."""
    reached = (i for i, c in enumerate(trace.checkpoints) if c.progress >= cap)
    at = next(reached, None)
    if at is None or cap >= trace.cap:
        return trace
    return RunTrace(
        problem=trace.problem,
        cap=cap,
        checkpoints=trace.checkpoints[: at + 1],
        stops=trace.stops[: at + 1],
        whole=trace.stops[at],
    )


def _choose_even(traces: Sequence[RunTrace], max_loss: float, caps: Sequence[int]) -> Candidate:
    for cap in caps:
        compared = compare(traces, cap, None)
        if compared.loss_bound <= max_loss:
            return Candidate(policy=EVEN, cap=cap, rule=None, calibration=compared)
    whole = max(trace.cap for trace in traces)
    return Candidate(policy=EVEN, cap=whole, rule=None, calibration=compare(traces, whole, None))


def list_caps(traces: Sequence[RunTrace]) -> list[int]:
    """List every progress at which some run has a checkpoint, and the whole."""
    progress = {c.progress for trace in traces for c in trace.checkpoints}
    return sorted(progress | {max(trace.cap for trace in traces)})


def _wholes(traces: Sequence[RunTrace]) -> list[Ending]:
    return [Ending(right=trace.whole.right, tokens=trace.whole.tokens) for trace in traces]


# ---------------------------------------------------------------- held-out problems


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenCurve:
    """The even policy on the held-out problems, at every cap."""

    caps: list[int]
    right: npt.NDArray[np.float64]
    """(num_caps, num_problems) 1 where the answer is right."""
    tokens: npt.NDArray[np.float64]
    """(num_caps, num_problems)"""

    def find_equal(
        self, accuracy: float, tie: float, at: npt.NDArray[np.int64]
    ) -> tuple[int, bool]:
        """Return the index of the equal even cap on some problems, and whether there is one.

        Without one it is the index of the whole.
        """
        for index, right in enumerate(self.right):
            if right[at].mean() >= accuracy - tie - 1e-9:
                return index, True
        return len(self.caps) - 1, False


def build_report(
    candidates: Sequence[Candidate],
    heldout: Sequence[RunTrace],
    even_caps: Sequence[int],
    *,
    tie: float,
    draws: int,
) -> dict[str, Any]:
    """Replay the candidates on held-out problems. The chosen one is that with the fewest tokens
    on the calibration problems; the other rows are for comparison only."""
    curve = _draw_even_curve(heldout, even_caps)
    chosen = min(candidates, key=lambda c: (c.calibration.tokens, c.policy != EVEN))
    rows = [
        {**_measure(candidate, heldout, curve, tie, draws), "chosen": candidate is chosen}
        for candidate in candidates
    ]
    return {"chosen": next(row for row in rows if row["chosen"]), "rows": rows}


def _draw_even_curve(heldout: Sequence[RunTrace], caps: Sequence[int]) -> EvenCurve:
    ends = [end_runs(heldout, cap, None) for cap in caps]
    return EvenCurve(
        caps=list(caps),
        right=np.array([[float(e.right) for e in row] for row in ends]),
        tokens=np.array([[float(e.tokens) for e in row] for row in ends]),
    )


def _measure(
    candidate: Candidate, heldout: Sequence[RunTrace], curve: EvenCurve, tie: float, draws: int
) -> dict[str, Any]:
    ends = end_runs(heldout, candidate.cap, candidate.rule)
    right = np.array([float(e.right) for e in ends])
    tokens = np.array([float(e.tokens + e.overhead) for e in ends])

    def save(at: npt.NDArray[np.int64]) -> tuple[float, int, bool]:
        index, is_equal = curve.find_equal(float(right[at].mean()), tie, at)
        return 1 - float(tokens[at].sum() / curve.tokens[index][at].sum()), index, is_equal

    everything = np.arange(len(heldout))
    saved, index, is_equal = save(everything)
    rng = np.random.default_rng(0)
    resampled = [save(rng.choice(everything, len(everything)))[0] for _ in range(draws)]
    whole = compare_endings(list(zip(ends, _wholes(heldout), strict=True)))
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {
        "policy": candidate.policy,
        "cap": candidate.cap,
        "rule": describe(candidate.rule),
        "calibration_loss_bound": round(candidate.calibration.loss_bound, 4),
        "accuracy": round(whole.accuracy, 4),
        "tokens": round(whole.tokens, 1),
        "difference_to_n": round(whole.difference, 4),
        "difference_to_n_95": [round(value, 4) for value in whole.interval],
        "saved_against_n": round(whole.saved, 4),
        "equal_even_cap": curve.caps[index],
        "equal_even_reached": is_equal,
        "equal_even_accuracy": round(float(curve.right[index].mean()), 4),
        "equal_even_tokens": round(float(curve.tokens[index].mean()), 1),
        "saved": round(saved, 4),
        "saved_95": [round(float(low), 4), round(float(high), 4)],
    }


def describe(rule: Rule | None) -> dict[str, Any] | None:
    """Return a rule as the `early_exit` field of a request."""
    if rule is None:
        return None
    body: dict[str, Any] = {"policy": rule.policy, "detect": rule.detect}
    body["thresholds"] = dict(rule.thresholds)
    return body


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a markdown table. The chosen one is bold."""
    lines = [
        "| policy | cap | accuracy | tokens | equal even cap | its accuracy | its tokens"
        " | saved, 95 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["saved_95"]
        name = f"**{row['policy']}**" if row["chosen"] else row["policy"]
        equal = f"{row['equal_even_cap']}" + ("" if row["equal_even_reached"] else " (not reached)")
        lines.append(
            f"| {name} | {row['cap']} | {row['accuracy']:.1%} | {row['tokens']:,.0f} | {equal}"
            f" | {row['equal_even_accuracy']:.1%} | {row['equal_even_tokens']:,.0f}"
            f" | {row['saved']:.1%} ({low:.1%} to {high:.1%}) |"
        )
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("--problems", type=Path, required=True, help="held-out problems")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION)
    parser.add_argument("--caps", type=lambda s: [int(x) for x in s.split(",")], default=[])
    parser.add_argument("--policies", type=lambda s: s.split(","), default=list(POLICIES))
    parser.add_argument("--options", type=json.loads, default={}, help="the strategy's, as JSON")
    parser.add_argument("--max-loss", type=float, default=0.01)
    parser.add_argument("--tie", type=float, default=0.005)
    parser.add_argument("--draws", type=int, default=2000, help="bootstrap resamples")
    parser.add_argument("--limit", type=int, default=None, help="held-out problems to use")
    parser.add_argument("--calibration-limit", type=int, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
