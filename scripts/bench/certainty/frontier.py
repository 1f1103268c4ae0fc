"""Tokens to accuracy of a strategy under the policies, at several resource caps (arXiv 2412.20993,
Table 1, Figs. 6, 7, Table 4).

Whole runs of calibration problems and of held-out problems are made once, through the daemon; the
rules are chosen on the former and replay on the latter, which is what those runs would have been
(tests/unit holds replay against real early exits). A cap below n is a whole run ended there:
exact where runs begin alike whatever their end: self-consistency, MCTS, REBASE in trees whose
`width` (`--options`) divides the caps. Give other strategies one n a call.

    python -m scripts.bench.certainty.frontier --strategy self_consistency -n 30 \\
        --caps 5,10,15,20,25,30 --calibration cal.jsonl --problems heldout.jsonl --plot out.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flashedge.certainty.calibration import Calibrator
from flashedge.certainty.replay import Ending, RunTrace, replay
from flashedge.certainty.rules import POLICIES, Rule
from flashedge.cli.calibrate.runs import find_right_answers
from flashedge.config import load_config
from flashedge.files.problems import read_labelled
from flashedge.plots import draw_plot
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_rule
from flashedge.statistics import bootstrap, interval, mean
from scripts.bench.certainty.whole_runs import whole_runs


def main() -> None:
    options = parsed()
    config = load_config({})
    found: dict[str, list[RunTrace]] = {}
    for name, path in (("calibration", options.calibration), ("heldout", options.problems)):
        asked = read_labelled(path, options.limit if name == "heldout" else None)
        runs = whole_runs(asked, path.name, options.strategy, options.n, config, options.options)
        right = find_right_answers(runs, {problem.text: problem.answer for problem in asked})
        found[name] = [run.build_trace(right) for run, said in zip(runs, right, strict=True)]
    usual = build_exit_rule(ExitOptions(), options.strategy)
    measures = [measure for measure, _ in usual.thresholds]
    table = [
        row
        for cap in options.caps or [None]
        for row in rows_of(found["calibration"], found["heldout"], cap, options.policies, measures)
    ]
    for row in table:
        print(json.dumps(row), flush=True)
    if options.plot:
        draw(options.plot, options.strategy, table)
    counts = {name: len(traces) for name, traces in found.items()}
    print(json.dumps({"strategy": options.strategy, "n": options.n, **counts, "table": table}))


def rows_of(
    calibration: Sequence[RunTrace],
    heldout: Sequence[RunTrace],
    cap: int | None,
    policies: Sequence[str],
    measures: Sequence[str],
) -> list[dict[str, object]]:
    """The even policy and each other one, calibrated for this cap; None: whole runs."""
    known, asked = ([capped(t, cap) for t in traces] for traces in (calibration, heldout))
    even = [bare(trace.whole) for trace in asked]
    rows = [{"cap": cap, "policy": "even", **figures(even, even), "fired": 0.0, "rule": None}]
    for policy in policies:
        rule = Calibrator(known, policy, measures).choose(0.0).rule
        spent = even if rule is None else [replay(t, rule.build_policy()) for t in asked]
        fired = [s.tokens < e.tokens for s, e in zip(spent, even, strict=True)]
        rows.append(
            {
                "cap": cap,
                "policy": policy,
                **figures(spent, even),
                "fired": round(mean([float(flag) for flag in fired]), 3),
                "rule": told(rule),
            }
        )
    return rows


def capped(trace: RunTrace, cap: int | None) -> RunTrace:
    """The run as it had been with a smaller end."""
    if cap is None or cap >= trace.cap:
        return trace
    count = sum(checkpoint.progress <= cap for checkpoint in trace.checkpoints)
    if not count:
        return trace
    whole = trace.stops[count - 1]
    return replace(
        trace,
        cap=cap,
        checkpoints=trace.checkpoints[:count],
        stops=trace.stops[:count],
        whole=whole,
    )


def bare(spent: Ending) -> Ending:
    """Without probes: nobody probes who never stops."""
    return replace(spent, overhead=0)


def figures(spent: Sequence[Ending], even: Sequence[Ending]) -> dict[str, object]:
    """Accuracy, its paired difference to the even policy, tokens, and the share saved."""
    right = [float(s.right) for s in spent]
    difference = [float(s.right) - float(e.right) for s, e in zip(spent, even, strict=True)]
    pairs = [(s.tokens + s.overhead, e.tokens) for s, e in zip(spent, even, strict=True)]
    return {
        "accuracy": round(mean(right), 4),
        "accuracy_95": rounded(interval(right)),
        "difference": round(mean(difference), 4),
        "difference_95": rounded(interval(difference)),
        "tokens": round(mean([tokens for tokens, _ in pairs]), 1),
        "saved": round(saved(pairs), 4),
        "saved_95": rounded(bootstrap(pairs, saved, draws=1000)),
    }


def saved(pairs: Sequence[tuple[int, int]]) -> float:
    """Share of even's tokens that are not spent. pairs: spent and even's, a pair a problem."""
    return 1 - sum(tokens for tokens, _ in pairs) / sum(whole for _, whole in pairs)


def rounded(pair: tuple[float, float]) -> list[float]:
    return [round(value, 4) for value in pair]


def told(rule: Rule | None) -> dict[str, object] | None:
    """As a request's `early_exit` says it."""
    if rule is None:
        return None
    said: dict[str, object] = {"policy": rule.policy, "detect": rule.detect}
    said["thresholds"] = dict(rule.thresholds)
    if rule.max_tokens:
        said["max_tokens"] = rule.max_tokens
    return said | ({"curve": [list(point) for point in rule.curve]} if rule.curve else {})


def draw(path: Path, strategy: str, table: Sequence[dict]) -> None:
    """Accuracy over tokens, a line for each policy."""
    names = dict.fromkeys(row["policy"] for row in table)
    series = {
        name: sorted((row["tokens"], row["accuracy"]) for row in table if row["policy"] == name)
        for name in names
    }
    draw_plot(
        path, series, title=strategy, x="tokens a problem", y="accuracy", points=len(table) > 2
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("--caps", type=lambda s: [int(x) for x in s.split(",")], default=[])
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
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
