"""One search on a running daemon, timed from outside, and what a table says of many."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple, Self

from flashedge import events
from flashedge.benchmark.goodput import goodput
from flashedge.client.sync_client import Client, from_event
from flashedge.errors import RequestError
from flashedge.statistics import interval, mean, bootstrap


class Which(NamedTuple):
    """A run of the bench: rung and kv by name, the problem by its index."""

    rung: str
    kv: str
    n: int
    problem: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """rung, kv, n, problem, round: which one; seconds: from the run's start to its end; tree:
    digest of all token ids, scores and statuses; reuse: verifier tokens whose KV was there."""

    rung: str
    kv: str
    n: int
    problem: int
    round: int
    seconds: float
    generate_s: float
    verify_s: float
    goodput: float
    answer: str | None
    tree: str
    tree_tokens: int
    reuse: float
    steps: int
    kept_steps: int
    drawn_tokens: int

    @property
    def which(self) -> Which:
        return Which(self.rung, self.kv, self.n, self.problem, self.round)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises TypeError."""
        return cls(**data)


def timed(
    client: Client,
    body: Mapping[str, Any],
    which: Which,
    clock: Callable[[], float] = time.monotonic,
) -> LiveRun:
    """Carry out a run. Raises its error."""
    began = clock()
    done_s: dict[int, float] = {}
    for _, event in client.solve(body):
        match event:
            case events.RunStarted():
                began = clock()
            case events.NodesMarked(status="complete", nodes=nodes):
                done_s.update(dict.fromkeys(nodes, clock() - began))
            case events.RunFinished(result=result):
                return _told(result, done_s, clock() - began, which)
            case events.RunFailed() as failed:
                raise from_event(failed)
            case events.RunCancelled(reason=reason):
                raise RequestError(f"a run of the bench was cancelled: {reason}")
    raise RequestError("a run of the bench had no end")


def _told(
    result: Mapping[str, Any],
    done_s: Mapping[int, float],
    seconds: float,
    which: Which,
) -> LiveRun:
    lengths = [len(c["token_ids"]) for c in result["completions"] if c["node"] in done_s]
    usage, timing = result["usage"], result["timing"]
    asked = usage["verifier_tokens"]
    return LiveRun(
        **which._asdict(),
        seconds=seconds,
        generate_s=timing["generate_s"],
        verify_s=timing["verify_s"],
        goodput=goodput(lengths, done_s.values()),
        answer=result["answer"],
        tree=digest(result["tree"]),
        tree_tokens=usage["tree_tokens"],
        reuse=usage["verifier_cached_tokens"] / asked if asked else 0.0,
        steps=len(result["tree"]["nodes"]) - 1,
        kept_steps=usage["speculation"]["kept_steps"],
        drawn_tokens=usage["speculation"]["drawn_tokens"],
    )


def digest(tree: Mapping[str, Any]) -> str:
    """16 hex digits of a result's tree: the same tokens, scores and choices, the same digits."""
    told = [(n["id"], n["parent"], n["token_ids"], n["score"], n["status"]) for n in tree["nodes"]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- many


def compared(
    runs: Iterable[LiveRun], right: Mapping[tuple[int, str | None], bool], first: str = "stock"
) -> list[dict[str, Any]]:
    """A row for each (kv, n, rung): medians over rounds, then over problems; gains: mean and median
    of each problem's ratio to the rung `first`, with their 95 % bootstrap intervals.

    right: whether an answer of a problem is right, for those that are known.
    """
    groups: dict[tuple[str, int, str], dict[int, list[LiveRun]]] = {}
    for run in runs:
        cases = groups.setdefault((run.kv, run.n, run.rung), {})
        cases.setdefault(run.problem, []).append(run)
    rows = []
    for (kv, n, rung), cases in groups.items():
        base = groups.get((kv, n, first), {})
        both = [p for p in cases if p in base]
        flat = [run for rounds in cases.values() for run in rounds]
        rows.append(
            {
                "kv": kv,
                "n": n,
                "rung": rung,
                "problems": len(cases),
                "latency_s": median(_mid(rounds, "seconds") for rounds in cases.values()),
                "generator_s": median(_mid(rounds, "generate_s") for rounds in cases.values()),
                "verifier_s": median(_mid(rounds, "verify_s") for rounds in cases.values()),
                "goodput": median(_mid(rounds, "goodput") for rounds in cases.values()),
                "goodput_gain": _gain([_over(cases[p], base[p], "goodput") for p in both]),
                "speedup": _gain([_over(base[p], cases[p], "seconds") for p in both]),
                "verifier_share": _gain([_over(cases[p], base[p], "verify_s") for p in both]),
                "same_trees": sum(_same(cases[p], base[p]) for p in both) / len(both)
                if both
                else None,
                "right": _right(cases, right),
                "reuse": mean([run.reuse for run in flat]),
                "kept_steps": sum(r.kept_steps for r in flat) / max(1, sum(r.steps for r in flat)),
            }
        )
    return rows


def _mid(rounds: Sequence[LiveRun], name: str) -> float:
    return float(median(getattr(run, name) for run in rounds))


def _over(ours: Sequence[LiveRun], theirs: Sequence[LiveRun], name: str) -> float | None:
    below = _mid(theirs, name)
    return _mid(ours, name) / below if below else None


def _gain(ratios: Sequence[float | None]) -> dict[str, float] | None:
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


def _same(ours: Sequence[LiveRun], theirs: Sequence[LiveRun]) -> bool:
    return len({run.tree for run in (*ours, *theirs)}) == 1


def _right(
    cases: Mapping[int, Sequence[LiveRun]], right: Mapping[tuple[int, str | None], bool]
) -> float | None:
    known = [
        right[p, rounds[0].answer] for p, rounds in cases.items() if (p, rounds[0].answer) in right
    ]
    return mean([float(flag) for flag in known]) if known else None
