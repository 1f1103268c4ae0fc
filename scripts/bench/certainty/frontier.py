"""Tokens and accuracy of a strategy under each policy, at several caps (arXiv 2412.20993, Table 1,
Figs. 6, 7, Table 4).

Runs at full compute are made once, through the daemon. Rules are chosen on the calibration problems
and replayed on the held-out ones, which gives what an early exit would have done (tests/unit checks
this against real early exits). Savings here are at equal caps; `equal_accuracy` compares at equal
accuracy. A cap below n is a whole run ended there, which is exact for self-consistency, MCTS, and
REBASE in trees whose `width` (`--options`) divides the caps. Run other strategies once for each n.

    python -m scripts.bench.certainty.frontier --strategy self_consistency -n 30 \\
        --caps 5,10,15,20,25,30 --calibration cal.jsonl --problems heldout.jsonl --plot out.svg
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashedge.certainty.calibration import Calibrator, Ending, RunTrace, end_at_cap, replay
from flashedge.certainty.policies import POLICIES
from flashedge.plots import draw_plot
from flashedge.runtime.request.early_exit import build_paper_rule
from scripts.bench.certainty.equal_accuracy import EVEN, describe, lower_cap
from scripts.bench.certainty.whole_runs import load_traces
from scripts.lab.statistics import bootstrap, interval, mean


def main() -> None:
    options = parse_options()
    run = (options.strategy, options.n, options.options)
    calibration = load_traces(options.calibration, *run)
    heldout = load_traces(options.problems, *run, limit=options.limit)
    usual = build_paper_rule(options.strategy)
    measures = [measure for measure, _ in usual.thresholds]
    table = [
        row
        for cap in options.caps or [options.n]
        for row in build_rows(
            [lower_cap(trace, cap) for trace in calibration],
            [lower_cap(trace, cap) for trace in heldout],
            cap,
            options.policies,
            measures,
            options.max_loss,
        )
    ]
    for row in table:
        print(json.dumps(row), flush=True)
    if options.plot:
        draw(options.plot, options.strategy, table)
    counts = {"calibration": len(calibration), "heldout": len(heldout)}
    print(json.dumps({"strategy": options.strategy, "n": options.n, **counts, "table": table}))


def build_rows(
    calibration: Sequence[RunTrace],
    heldout: Sequence[RunTrace],
    cap: int,
    policies: Sequence[str],
    measures: Sequence[str],
    max_loss: float,
) -> list[dict[str, Any]]:
    """Return a row for the even policy and one for each other policy, calibrated for this cap."""
    even = [end_at_cap(trace, cap) for trace in heldout]
    rows = [{"cap": cap, "policy": EVEN, **compare(even, even), "fired": 0.0, "rule": None}]
    for policy in policies:
        rule = Calibrator(calibration, policy, measures).choose(max_loss).rule
        ends = even if rule is None else [replay(t, rule) for t in heldout]
        fired = [e.tokens < w.tokens for e, w in zip(ends, even, strict=True)]
        rows.append(
            {
                "cap": cap,
                "policy": policy,
                **compare(ends, even),
                "fired": round(mean([float(flag) for flag in fired]), 3),
                "rule": describe(rule),
            }
        )
    return rows


def compare(ends: Sequence[Ending], even: Sequence[Ending]) -> dict[str, Any]:
    """Return accuracy, its paired difference to the even policy, tokens, and the share saved."""
    right = [float(e.right) for e in ends]
    difference = [float(e.right) - float(w.right) for e, w in zip(ends, even, strict=True)]
    pairs = [(e.tokens + e.overhead, w.tokens) for e, w in zip(ends, even, strict=True)]
    return {
        "accuracy": round(mean(right), 4),
        "accuracy_95": round_pair(interval(right)),
        "difference": round(mean(difference), 4),
        "difference_95": round_pair(interval(difference)),
        "tokens": round(mean([tokens for tokens, _ in pairs]), 1),
        "saved": round(compute_saved(pairs), 4),
        "saved_95": round_pair(bootstrap(pairs, compute_saved, draws=1000)),
    }


def compute_saved(pairs: Sequence[tuple[int, int]]) -> float:
    """Return the share of tokens saved. pairs: tokens and the even policy's, for each problem."""
    return 1 - sum(tokens for tokens, _ in pairs) / sum(whole for _, whole in pairs)


def round_pair(pair: tuple[float, float]) -> list[float]:
    return [round(value, 4) for value in pair]


def draw(path: Path, strategy: str, table: Sequence[dict[str, Any]]) -> None:
    """Draw accuracy over tokens, a line for each policy."""
    names = dict.fromkeys(row["policy"] for row in table)
    series = {
        name: sorted((row["tokens"], row["accuracy"]) for row in table if row["policy"] == name)
        for name in names
    }
    draw_plot(
        path, series, title=strategy, x="tokens a problem", y="accuracy", points=len(table) > 2
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("--caps", type=lambda s: [int(x) for x in s.split(",")], default=[])
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--max-loss", type=float, default=0.01)
    parser.add_argument(
        "--options", type=json.loads, default={}, help="the strategy's own, as JSON"
    )
    parser.add_argument(
        "--policies", type=lambda s: s.split(","), default=list(POLICIES), help="names, by commas"
    )
    parser.add_argument("--plot", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
