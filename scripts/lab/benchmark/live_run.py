"""Times searches on a running daemon, and compares them problem by problem."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple, Self

from flashedge import events
from flashedge.client.protocol import build_run_error
from flashedge.client.sync_client import Client
from flashedge.errors import RequestError
from flashedge.statistics import bootstrap, interval, mean
from scripts.lab.benchmark.goodput import compute_goodput
from scripts.lab.benchmark.ladder import SUFFIX


class RunKey(NamedTuple):
    """Identifies a run of the benchmark: rung and KV budget by name, the problem by its index."""

    rung: str
    kv: str
    n: int
    problem: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A timed run. Its first five fields are its key."""

    rung: str
    kv: str
    n: int
    problem: int
    round: int

    seconds: float
    """From the run's start to its end."""

    generate_s: float
    verify_s: float
    goodput: float
    answer: str | None

    tree: str
    """Digest of all token ids, scores and statuses."""

    tree_tokens: int

    reuse: float
    """Share of the verifier's tokens whose KV was reused."""

    steps: int
    kept_steps: int
    drawn_tokens: int

    @property
    def key(self) -> RunKey:
        return RunKey(self.rung, self.kv, self.n, self.problem, self.round)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises TypeError."""
        return cls(**data)


def time_run(
    client: Client,
    body: Mapping[str, Any],
    key: RunKey,
    clock: Callable[[], float] = time.monotonic,
) -> LiveRun:
    """Run a search. Raises its error."""
    began = clock()
    done_s: dict[int, float] = {}
    for _, event in client.solve(body):
        match event:
            case events.RunStarted():
                began = clock()
            case events.NodesMarked(status="complete", nodes=nodes):
                done_s.update(dict.fromkeys(nodes, clock() - began))
            case events.RunFinished(result=result):
                return _build_live_run(result, done_s, clock() - began, key)
            case events.RunFailed() as failed:
                raise build_run_error(failed)
            case events.RunCancelled(reason=reason):
                raise RequestError(f"a run of the benchmark was cancelled: {reason}")
    raise RequestError("a run of the benchmark has no terminal event")


def _build_live_run(
    result: Mapping[str, Any],
    done_s: Mapping[int, float],
    seconds: float,
    key: RunKey,
) -> LiveRun:
    lengths = [len(c["token_ids"]) for c in result["completions"] if c["node"] in done_s]
    usage, timing = result["usage"], result["timing"]
    verifier_tokens = usage["verifier_tokens"]
    return LiveRun(
        **key._asdict(),
        seconds=seconds,
        generate_s=timing["generate_s"],
        verify_s=timing["verify_s"],
        goodput=compute_goodput(lengths, done_s.values()),
        answer=result["answer"],
        tree=digest_tree(result["tree"]),
        tree_tokens=usage["tree_tokens"],
        reuse=(usage["verifier_cached_tokens"] / verifier_tokens if verifier_tokens else 0.0),
        steps=len(result["tree"]["nodes"]) - 1,
        kept_steps=usage["speculation"]["kept_steps"],
        drawn_tokens=usage["speculation"]["drawn_tokens"],
    )


def digest_tree(tree: Mapping[str, Any]) -> str:
    """Hash a result's tree to 16 hex digits, equal for equal tokens, scores and statuses."""
    nodes = [(n["id"], n["parent"], n["token_ids"], n["score"], n["status"]) for n in tree["nodes"]]
    return hashlib.sha256(json.dumps(nodes).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- many


def compare_runs(
    runs: Iterable[LiveRun], right: Mapping[tuple[int, str | None], bool], first: str = "stock"
) -> list[dict[str, Any]]:
    """Build a row for each (kv, n, rung): medians over rounds, then over problems.

    Gains are the mean and the median of each problem's ratio to the rung `first`, with their 95 %
    bootstrap intervals. `gain_over_suffix` is the gain in goodput over suffix scoring, None where
    that rung was not run. right: (problem, answer) -> whether it is right, where that is known.
    """
    groups: dict[tuple[str, int, str], dict[int, list[LiveRun]]] = {}
    for run in runs:
        cases = groups.setdefault((run.kv, run.n, run.rung), {})
        cases.setdefault(run.problem, []).append(run)
    rows = []
    for (kv, n, rung), cases in groups.items():
        base = groups.get((kv, n, first), {})
        suffix = groups.get((kv, n, SUFFIX.name), {})
        both = [p for p in cases if p in base]
        flat = [run for rounds in cases.values() for run in rounds]
        rows.append(
            {
                "kv": kv,
                "n": n,
                "rung": rung,
                "problems": len(cases),
                "latency_s": median(_take_median(rounds, "seconds") for rounds in cases.values()),
                "generator_s": median(
                    _take_median(rounds, "generate_s") for rounds in cases.values()
                ),
                "verifier_s": median(_take_median(rounds, "verify_s") for rounds in cases.values()),
                "goodput": median(_take_median(rounds, "goodput") for rounds in cases.values()),
                "goodput_gain": _summarize_ratios(
                    [_divide_medians(cases[p], base[p], "goodput") for p in both]
                ),
                "gain_over_suffix": _summarize_ratios(
                    [_divide_medians(cases[p], suffix[p], "goodput") for p in cases if p in suffix]
                ),
                "speedup": _summarize_ratios(
                    [_divide_medians(base[p], cases[p], "seconds") for p in both]
                ),
                "verifier_share": _summarize_ratios(
                    [_divide_medians(cases[p], base[p], "verify_s") for p in both]
                ),
                "same_trees": sum(_have_same_tree(cases[p], base[p]) for p in both) / len(both)
                if both
                else None,
                "right": _compute_accuracy(cases, right),
                "reuse": mean([run.reuse for run in flat]),
                "kept_steps": sum(r.kept_steps for r in flat) / max(1, sum(r.steps for r in flat)),
            }
        )
    return rows


def _take_median(rounds: Sequence[LiveRun], name: str) -> float:
    return float(median(getattr(run, name) for run in rounds))


def _divide_medians(ours: Sequence[LiveRun], theirs: Sequence[LiveRun], name: str) -> float | None:
    below = _take_median(theirs, name)
    return _take_median(ours, name) / below if below else None


def _summarize_ratios(ratios: Sequence[float | None]) -> dict[str, float] | None:
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return None
    low, high = interval(known)
    least, most = bootstrap(known, median)
    return {
        "value": mean(known),
        "low": low,
        "high": high,
        "median": median(known),
        "median_low": least,
        "median_high": most,
    }


def _have_same_tree(ours: Sequence[LiveRun], theirs: Sequence[LiveRun]) -> bool:
    return len({run.tree for run in (*ours, *theirs)}) == 1


def _compute_accuracy(
    cases: Mapping[int, Sequence[LiveRun]], right: Mapping[tuple[int, str | None], bool]
) -> float | None:
    known = [
        right[p, rounds[0].answer] for p, rounds in cases.items() if (p, rounds[0].answer) in right
    ]
    return mean([float(flag) for flag in known]) if known else None
