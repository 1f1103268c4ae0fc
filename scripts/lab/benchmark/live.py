"""Times searches on a running daemon, compares them problem by problem, grades their answers."""

import dataclasses
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, TypeVar

from flashedge import events
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon import control as daemon_control
from flashedge.errors import ConfigError
from flashedge.files.problems import FileProblem
from flashedge.optimizations import FEATURES, Optimizations
from flashedge.sizes import parse_size
from scripts.lab.benchmark.ladder import SUFFIX, Rung, compute_goodput
from scripts.lab.runs import find_result
from scripts.lab.statistics import bootstrap, interval, mean

P = TypeVar("P", int, int | str)


class RunKey(NamedTuple):
    """Identifies a run: rung and KV budget by name, the problem by its index."""

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
        return cls(**data)


def time_run(
    client: Client,
    body: Mapping[str, Any],
    key: RunKey,
    clock: Callable[[], float] = time.monotonic,
) -> LiveRun:
    began = clock()
    done_s: dict[int, float] = {}
    for _, event in client.solve(body):
        match event:
            case events.RunStarted():
                began = clock()
            case events.NodesMarked(status="complete", nodes=nodes):
                done_s.update(dict.fromkeys(nodes, clock() - began))
        if (result := find_result(event)) is not None:
            return _build_live_run(result, done_s, clock() - began, key)
    raise AssertionError("a stream of events ends with a terminal one")


def _build_live_run(
    result: Mapping[str, Any], done_s: Mapping[int, float], seconds: float, key: RunKey
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


MEDIANS = {
    "latency_s": "seconds",
    "generator_s": "generate_s",
    "verifier_s": "verify_s",
    "goodput": "goodput",
}
"""Figures of a row, and the fields of runs that they are medians of."""
RATIO = ("value", "low", "high", "median", "median_low", "median_high")


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
        flat = [run for rounds in cases.values() for run in rounds]
        medians = {
            figure: median(_take_median(rounds, name) for rounds in cases.values())
            for figure, name in MEDIANS.items()
        }
        same = [len({run.tree for run in (*cases[p], *base[p])}) == 1 for p in cases if p in base]
        known = [(p, rounds[0].answer) for p, rounds in cases.items()]
        graded = [float(right[pair]) for pair in known if pair in right]
        rows.append(
            {
                "kv": kv,
                "n": n,
                "rung": rung,
                "problems": len(cases),
                **medians,
                "goodput_gain": _summarize_ratios(cases, base, "goodput"),
                "gain_over_suffix": _summarize_ratios(cases, suffix, "goodput"),
                "speedup": _summarize_ratios(base, cases, "seconds"),
                "verifier_share": _summarize_ratios(cases, base, "verify_s"),
                "same_trees": sum(same) / len(same) if same else None,
                "right": mean(graded) if graded else None,
                "reuse": mean([run.reuse for run in flat]),
                "kept_steps": sum(r.kept_steps for r in flat) / max(1, sum(r.steps for r in flat)),
            }
        )
    return rows


def _take_median(rounds: Sequence[LiveRun], name: str) -> float:
    return float(median(getattr(run, name) for run in rounds))


def _summarize_ratios(
    above: Mapping[int, Sequence[LiveRun]], below: Mapping[int, Sequence[LiveRun]], name: str
) -> dict[str, float] | None:
    """Summarize the ratio of medians of each problem that both have. None without one."""
    both = (p for p in above if p in below)
    pairs = ((_take_median(above[p], name), _take_median(below[p], name)) for p in both)
    known = [one / other for one, other in pairs if other]
    if not known:
        return None
    values = (mean(known), *interval(known), median(known), *bootstrap(known, median))
    return dict(zip(RATIO, values, strict=True))


async def grade_answers(
    runs: Iterable[LiveRun], problems: Sequence[FileProblem]
) -> dict[tuple[int, str | None], bool]:
    """`grade_pairs` of the runs' problems and answers."""
    known = {p.index: p.answer for p in problems if p.answer is not None}
    return await grade_pairs(((run.problem, run.answer) for run in runs), known)


async def grade_pairs(
    asked: Iterable[tuple[P, str | None]], known: Mapping[P, str]
) -> dict[tuple[P, str | None], bool]:
    """(problem, answer) -> is right, of the pairs whose problem has a known right answer."""
    grader = MathGrader()
    try:
        return {
            (problem, answer): answer is not None and await grader.equal(known[problem], answer)
            for problem, answer in sorted(set(asked), key=str)
            if problem in known
        }
    finally:
        await grader.close()


PLANNED = "plan"
"""Names the KV budget of the pair's own memory plan."""


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What the benchmark runs."""

    rungs: tuple[Rung, ...]
    problems: tuple[FileProblem, ...]
    widths: tuple[int, ...]
    """Values of n."""
    kv: Mapping[str, int | None]
    """Bytes of KV of both engines together, by name. See `parse_budget`."""
    rounds: int
    strategy: str = "beam"
    seed: int = 0

    @cached_property
    def keys(self) -> tuple[RunKey, ...]:
        """All runs, in their order: a daemon for each (round, kv, rung)."""
        return tuple(
            RunKey(rung=rung.name, kv=kv, n=n, problem=problem.index, round=number)
            for number in range(self.rounds)
            for kv in self.kv
            for rung in self.rungs
            for n in self.widths
            for problem in self.problems
        )


def parse_budget(text: str) -> tuple[str, int | None]:
    """("plan", None), or ("64MiB", bytes). Raises ConfigError."""
    if text == PLANNED:
        return PLANNED, None
    size = parse_size(text)
    if size is not None and size >= 1 << 10:  # a bare "64" lacks its unit
        return text, size
    raise ConfigError(
        f"KV budget {text!r} is no size", hint=f"a size of both engines, like 64MiB, or {PLANNED}"
    )


def run_plan(
    plan: BenchPlan,
    config: Config,
    say: Callable[[str], None],
    done: Callable[[LiveRun], None],
    *,
    kept: Collection[RunKey] = (),
    command: Sequence[str] = daemon_control.PRODUCT,
) -> None:
    """Run the whole plan but the runs in `kept`, and report each to `done`.

    Raises the error of a daemon that does not start or is lost, and the error of a run.
    """
    rungs = {rung.name: rung for rung in plan.rungs}
    problems = {problem.index: problem for problem in plan.problems}
    left = (key for key in plan.keys if key not in kept)
    for (number, kv, name), keys in groupby(left, key=lambda w: (w.round, w.kv, w.rung)):
        rung = rungs[name]
        say(f"round {number + 1}, KV {kv}: a daemon for {name}")
        settings: dict[str, object] = {"features": write_features(rung.optimizations)}
        if (kv_bytes := plan.kv[kv]) is not None:
            settings["kv_bytes"] = kv_bytes // 2
        with _daemon(config, settings, command) as connect:
            warm_up = _body(plan, rung, plan.problems[0], 1)  # an engine's first run is slow
            with connect("warm-up") as client:
                list(client.solve(warm_up))
            for n, of_width in groupby(keys, key=lambda key: key.n):
                with connect(f"n={n}") as client:  # tokens are drafted from a client's texts
                    for key in of_width:
                        body = _body(plan, rung, problems[key.problem], n)
                        done(time_run(client, body, key))


def write_features(switches: Optimizations) -> str:
    """The value of the setting `features` that sets these switches."""
    features = {name: on for name, on in asdict(switches).items() if name in FEATURES}
    return ",".join(f"{name}={'on' if on else 'off'}" for name, on in features.items())


def _body(plan: BenchPlan, rung: Rung, problem: FileProblem, n: int) -> dict[str, Any]:
    return {
        "problem": problem.text,
        "strategy": plan.strategy,
        "n": n,
        "seed": plan.seed + problem.index,
        "baseline": rung.is_stock,
    }


@contextmanager
def _daemon(
    config: Config, settings: Mapping[str, object], command: Sequence[str]
) -> Iterator[Callable[[str], Client]]:
    """Run a daemon with its own state and the user's models, profile and calibrations. Yields what
    connects a client by its name."""
    with tempfile.TemporaryDirectory(prefix="flashedge-bench-") as folder:
        own = dataclasses.replace(config, state_dir=Path(folder), port=0)
        for kept in ("profiles", "calibrations"):
            if (config.state_dir / kept).is_dir():
                shutil.copytree(config.state_dir / kept, own.state_dir / kept)
        given = {"pair": own.pair, "host": own.host, "port": own.port, **settings}
        try:
            process = daemon_control.start(own, given, command)
            record = daemon_control.wait_ready(own, process)
            yield lambda name: Client(record.url, api_key=own.api_key, name=name)
        finally:
            daemon_control.stop(own)
