"""What do orders of programs and early exit bring online, with what real models wrote?

    python -m scripts.bench.scheduling.recorded_programs SAMPLES PROBED TREES [--seeds 5]

Three loads, of one kind of program each, on a simulated RTX 4090 with two models of 1.5B, by the
product's driver, queue, admission and board in virtual time:

- votes of 8 paths. SAMPLES: as for `scripts.bench.certainty.votes`
- chains of thought, which probes may end. PROBED: what `scripts.bench.certainty.score --add probes`
  has made of such samples. What a probe adds to the path before it writes costs nothing here
- MCTS with 16 rollouts. TREES: what `scripts.bench.mcts.record` has made; steps have the lengths of
  Qwen2.5-Math, as in `scripts.bench.mcts.equal_parallelism`

Lengths and answers are the recorded ones, prompts have about as many tokens as letters / 4, and a
probe's suffix is read at no cost. The length of a path is forecast alike for all, as paths of other
problems are distributed (of chains: as the other answers to the problems are). Votes and trees ask
the second half of the problems. Every variant gets the same programs at the same times, paired by
seed. A number: so many paths or rollouts for all, the paper's even allocation. "no admission": all
programs send their requests at once, as to an engine without a queue before it, which is the
paper's system. The paper forecasts by a program's own iterations, which could change no order
behind admission, since a program that waits has none.

Rates are multiples of the programs a second that fcfs finishes while all are there at once. A
deadline is the median latency at the lowest rate under fcfs, times the difficulty: 1 for a problem
whose recorded answers are all right, 3 where none is, else 2 (of 8 answers; the paper has more than
100). The last line is JSON; an interrupted study resumes.

Hypothesis (arXiv 2412.20993 §4.2, App. F.3, G.3): at 90 % attainment the rate is 1.6 to 3.3 times
that of fcfs and of gangs, and as many deadlines are met with 0.7 to 2 points more right answers.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flashedge.answers.equality import decide_equal
from flashedge.answers.pairwise import group_by_first_match
from flashedge.certainty.measures import REWARD
from flashedge.config import Config, load_config
from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.errors import EngineError
from flashedge.events import Event, StepCompleted
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import build_engines
from flashedge.runtime.programs.scheduler import PairScheduler, measure_capacity
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RooflineCurve
from flashedge.scheduling.lengths.distribution import LengthDistribution, LogT
from flashedge.scheduling.programs.program import Caller
from flashedge.search.strategies.probed_cot import SUFFIX, read_probe
from flashedge.search.tree import mix64
from flashedge.types import FinishReason, Problem, TokenIds
from scripts.bench.certainty.samples import Vote, make_vote, read_samples
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import run_in_parallel
from scripts.bench.mcts.content import FIRST, Content, Contents, SimulatedProblem
from scripts.bench.mcts.leaping_engine import (
    LeapingGenerator,
    LeapingTwins,
    LeapingVerifier,
    RecordedJob,
    SharedDevice,
)
from scripts.bench.mcts.load import BLOCK_TOKENS, CONTEXT
from scripts.bench.mcts.places import build_place
from scripts.bench.mcts.recorded_tree import (
    RecordedNode,
    RecordedProblem,
    load_problems,
    load_records,
)
from scripts.bench.scheduling.program_study import (
    VARIANTS,
    Task,
    build_slo,
    format_study,
    plan,
    summarize,
)
from scripts.bench.scheduling.study import OUTPUT
from scripts.bench.smoke import SMALL, parse_arguments
from scripts.lab.benchmark.lengths import load_trace
from scripts.lab.benchmark.load.open_load import Served, run_load
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import (
    TRIED,
    Factors,
    ProgramRecord,
    compute_attainment,
    list_needed_scales,
)
from scripts.lab.benchmark.virtual_run import IntegerGrader
from scripts.lab.distributions import fit_log_t
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.scheduler import SimSequence
from scripts.lab.statistics import bootstrap, mean

PLACE = "1.5B on one card"
MCTS_EXIT = ExitOptions(policy="every_step", detect=2, thresholds={REWARD: 0.913})
"""As was chosen on calibration problems (docs/results/certainty.md)."""
MAX_RUNNING = 32
"""Programs at once, so that those that end early leave no room of the batch (128) unused. The
product's own bound is 8."""
RATES = (0.5, 1.0, 1.5, 2.0)
CUT = 512
"""Tokens at which the recorded answers were cut."""
PROBE_KEY = 1 << 32
"""See `probed_cot`: the child index from which the seed of a node's probe is made."""
WARM_UP_SEED, AT_ONCE = 1_000, 1e6
Rows = list[dict[str, Any]]
Points = dict[str, list[tuple[float, float]]]


# ---------------------------------------------------------------- what models wrote


class Chain(RecordedProblem):
    """A recorded chain with its probes."""

    def __init__(self, number: int, said: Sequence[tuple[str, int]]) -> None:
        super().__init__(number)
        self.said = said


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContent(Content):
    """What a probe wrote."""

    said: str

    @property
    def text(self) -> str:
        return self.said


class ProgramContents(Contents):
    """Also writes probes. The suffix of a probe has no tokens, so its path ends with its node."""

    def encode(self, text: str) -> TokenIds:
        return () if text == SUFFIX else super().encode(text)

    def extend(self, parent: Content, seed: int) -> Content:
        problem, depth = parent.run.problem, parent.node.depth
        if not isinstance(problem, Chain) or seed != mix64(parent.seeds[0], depth, PROBE_KEY):
            return super().extend(parent, seed)
        said, tokens = problem.said[depth - 1]
        probe = ProbeContent(
            id=FIRST + len(self._all),
            node=RecordedNode(depth=depth + 1, ends=True),
            key=parent.key,
            seeds=[seed],
            tokens=max(1, tokens),
            run=parent.run,
            said=said,
        )
        self._all.append(probe)
        return probe


class StreamedJob(RecordedJob):
    """Says when it has grown."""

    def __init__(self, sequence: SimSequence, content: Content, room: int) -> None:
        super().__init__(sequence, content, room)
        self.size = self.left
        self.grew = asyncio.Event()

    def leap(self, steps: int) -> None:
        super().leap(steps)
        self.grew.set()

    def fail(self, error: EngineError) -> None:
        super().fail(error)
        self.grew.set()


class StreamingGenerator(LeapingGenerator):
    """Sends what it has written whenever a request ends, since votes depend on which ends first."""

    async def _stream(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        contents = self.codec
        content = contents.extend(contents.find(request.token_ids[-1]), request.seed)
        sequence = SimSequence(
            id=next(self._ids), tokens=list(request.token_ids), program=request.program
        )
        room = min(request.max_tokens, self.max_model_len - len(request.token_ids))
        job = StreamedJob(sequence, content, room)
        ends = FinishReason.STOP if content.node.ends else FinishReason.BOUNDARY
        finish = FinishReason.LENGTH if job.is_cut else ends
        self._begin(job)
        try:
            sent = 0
            while sent < job.size:
                await job.grew.wait()
                job.grew.clear()
                if job.done.done():
                    job.done.result()
                count = job.size - job.left - sent
                sent += count
                yield Chunk(
                    token_ids=(content.id,) * count,
                    logprobs=(content.node.logprob,) * count,
                    finish=finish if sent == job.size else None,
                    cached_tokens=sequence.cached or 0,
                )
        finally:
            self._end(job)


def build_vote(number: int, vote: Vote, prompt_tokens: int) -> RecordedProblem:
    """Each answer is a child of the root."""
    problem = RecordedProblem(number)
    problem.prompt_tokens = prompt_tokens
    for i, sample in enumerate(vote.samples):
        problem.root.children[i] = RecordedNode(
            depth=1, tokens=sample.tokens, ends=True, answer=sample.answer, same=i
        )
        if sample.answer is not None:
            problem.right[sample.answer] = sample.answer in vote.right
    return problem


def build_chain(number: int, vote: Vote, prompt_tokens: int, *, is_probed: bool) -> Chain:
    """The answer that was probed, in one piece or in those between two probes."""
    sample = vote.put_probed_first().samples[0]
    read = [read_probe(SUFFIX, text) for text, _, _ in sample.probes]
    _, *answers = group_by_first_match(
        (sample.answer, *(answer for answer, _ in read)), lambda a, b: decide_equal(a, b) is True
    )
    said = []
    for answer, (_, end), (text, tokens, _) in zip(answers, read, sample.probes, strict=True):
        if answer is not None:
            answer = "right" if vote.is_right(answer) else f"wrong-{answer}"
            text = f"{answer}}}{text[end:]}"
        said.append((text, tokens))
    problem = Chain(number, said)
    problem.prompt_tokens = prompt_tokens
    node, left = problem.root, sample.tokens
    while left:
        size = min(left, vote.probe_tokens) if is_probed else left
        left -= size
        child = RecordedNode(depth=node.depth + 1, tokens=size, ends=not left)
        node.children[0] = child
        node = child
    node.answer = sample.answer
    if sample.answer is not None:
        problem.right[sample.answer] = vote.is_right(sample.answer)
    return problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Programs of one kind."""

    build: Callable[[bool], Sequence[RecordedProblem]]
    """The problems, by whether searches may end early."""
    factors: Factors
    """Of the deadlines, by problem."""
    lengths: LengthDistribution
    """Of a path, for all problems alike."""
    requests: tuple[Request, Request]
    """Without and with early exit, but for problem and seed."""
    caps: Sequence[int]
    """Smaller numbers of paths or rollouts, the paper's even allocation."""
    has_real_steps: bool = True
    """Whether steps are as long as recorded, or as those of Qwen2.5-Math."""


def describe_request(strategy: str, exits: ExitOptions, **fields: Any) -> tuple[Request, Request]:
    whole = Request(
        problem=Problem.from_text("run 0"),
        pair="simulated",
        strategy=strategy,
        max_step_tokens=1024,
        max_path_tokens=3900,
        **fields,
    )
    return whole, replace(whole, early_exit=exits)


def fit_lengths(lengths: Sequence[int]) -> LogT:
    found = np.array(lengths)
    return fit_log_t(found, found >= CUT)


def list_recorded(path: Path, limit: int | None) -> list[tuple[Vote, int]]:
    """The votes of a file with the tokens of their prompts, of four letters each, and 40 that the
    system's prompt has."""
    rows = islice(read_samples(path), limit)
    return [(make_vote(row, str(i)), len(row["problem"]) // 4 + 40) for i, row in enumerate(rows)]


def list_factors(recorded: Iterable[tuple[int, tuple[Vote, int]]]) -> Factors:
    return {
        number: TRIED[frozenset(s.answer in vote.right for s in vote.samples)]
        for number, (vote, _) in recorded
    }


@cache
def build_votes(path: Path, limit: int | None) -> Workload:
    recorded = list_recorded(path, limit)
    middle = len(recorded) // 2
    judged = list(enumerate(recorded))[middle:]
    return Workload(
        build=lambda _: [build_vote(number, *one) for number, one in judged],
        factors=list_factors(judged),
        lengths=fit_lengths([s.tokens for vote, _ in recorded[:middle] for s in vote.samples]),
        requests=describe_request("self_consistency", ExitOptions(), n=8),
        caps=(4, 6),
    )


@cache
def build_chains(path: Path, limit: int | None) -> Workload:
    recorded = [one for one in list_recorded(path, limit) if one[0].probe_tokens]
    chains = list(enumerate(recorded))
    whole, exits = describe_request("probed_cot", ExitOptions(), n=1)
    size = recorded[0][0].probe_tokens
    return Workload(
        build=lambda is_probed: [
            build_chain(number, *one, is_probed=is_probed) for number, one in chains
        ],
        factors=list_factors(chains),
        lengths=fit_lengths([s.tokens for vote, _ in recorded for s in vote.samples[1:]]),
        requests=(
            replace(whole, options={"probe_tokens": 0}),
            replace(exits, options={"probe_tokens": size}),
        ),
        caps=(),
    )


@cache
def build_trees(path: Path, limit: int | None) -> Workload:
    problems = load_problems(path)
    judged = problems[len(problems) // 2 :][:limit]
    records = {
        record["problem"]: record for record in load_records(path) if record["way"] == "mcts"
    }
    verdicts = {
        one.number: [is_right for *_, is_right in one.list_rollouts(records[one.number])]
        for one in judged
    }
    rows = load_trace("math").rows
    known = [
        sum(steps)
        for one in problems[: len(problems) // 2]
        for steps in rows[one.number % len(rows)].step_tokens
    ]
    return Workload(
        build=lambda _: judged,
        factors={number: TRIED[frozenset(found or [False])] for number, found in verdicts.items()},
        lengths=fit_lengths(known),
        requests=describe_request(
            "mcts", MCTS_EXIT, n=16, aggregate="prod", selection="best", branching=4
        ),
        caps=(4, 8),
        has_real_steps=False,
    )


# ---------------------------------------------------------------- one load


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a load is served."""

    variant: str
    """One of `VARIANTS`."""
    cap: int | None = None
    """Paths or rollouts, where there are fewer."""
    is_admitted: bool = True
    """Whether programs wait until there is room for all of their paths."""

    @property
    def name(self) -> str:
        cap = "" if self.cap is None else f", {self.cap}"
        return self.variant + cap + ("" if self.is_admitted else ", no admission")


class Server:
    """Serves the programs of one load in virtual time."""

    def __init__(
        self, workload: Workload, way: Way, programs: Sequence[PlannedProgram], max_running: int
    ) -> None:
        chosen = VARIANTS[way.variant]
        self._workload, self._way, self._programs = workload, way, programs
        self._config: Config = replace(
            load_config(),
            max_running=max_running if way.is_admitted else len(programs),
            **chosen.list_settings(),
        )
        request = workload.requests[chosen.exits_early]
        self._request = replace(request, n=way.cap) if way.cap else request
        self._problems = workload.build(chosen.exits_early)
        rows = load_trace("math").rows
        self._contents = ProgramContents(
            [
                SimulatedProblem(
                    number=program.number,
                    problem=(one := self._problems[program.problem]),
                    lengths=None if workload.has_real_steps else rows[one.number % len(rows)],
                )
                for program in programs
            ]
        )

    async def run(self) -> list[ProgramRecord]:
        place, device = build_place(PLACE), SharedDevice()
        shared = SimConfig(
            shape=place.generator,
            kv_bytes=place.kv_bytes[0],
            device=place.device,
            block_tokens=BLOCK_TOKENS,
            max_model_len=CONTEXT,
            max_num_seqs=place.max_sequences,
            max_batched_tokens=2048,
        )
        generator = StreamingGenerator(shared, self._contents, device)
        verifier = LeapingVerifier(
            replace(shared, shape=place.verifier, kv_bytes=place.kv_bytes[1]),
            self._contents,
            device,
        )
        now = asyncio.get_running_loop().time

        async def send_order(keys: Sequence[str]) -> None:
            await asyncio.gather(generator.rank_programs(keys), verifier.rank_programs(keys))

        self._board = PairScheduler("simulated", self._config, send_order, clock=now)
        if self._way.is_admitted:
            self._board.set_capacity(
                await measure_capacity(
                    generator,
                    verifier,
                    RooflineCurve(device=place.device, shape=place.generator),
                    max_running=self._config.max_running,
                    max_sequences=place.max_sequences,
                    is_shared=False,
                )
            )
        self._engines = build_engines(
            Optimizations.only("suffix_scoring", "score_once"),
            LeapingTwins(generator, verifier),
            grader=IntegerGrader(),
        )
        records: list[ProgramRecord] = []
        ids = [one.number for one in self._problems]
        await run_load(self._programs, self.serve, records.append, problem_ids=ids)
        await self._board.stop()
        return sorted(records, key=lambda record: record.number)

    async def serve(self, program: PlannedProgram) -> Served:
        board, key = self._board, f"run-{program.number}"
        number = self._problems[program.problem].number
        problem = Problem.from_text(f"run {program.number}")
        spec = replace(self._request, problem=problem, seed=number)
        prompt = self._contents.encode_chat(spec.problem.messages)
        now = asyncio.get_running_loop().time
        board.queue.check_room()
        board.add_run(key, spec, prompt, Caller(client=program.client))
        first_s: float | None = None

        def note(event: Event) -> None:
            nonlocal first_s
            board.note_event(key, event)
            if isinstance(event, StepCompleted):
                first_s = now() if first_s is None else first_s

        try:
            board.set_lengths(key, self._workload.lengths)
            board.queue.reserve(key)
            async with board.queue.wait_turn(key):
                board.note_start(key)
                started_s = now()
                engines = replace(self._engines, program=key)
                driver = Driver(build_search(spec), spec, prompt, engines, note)
                outcome = await driver.run()
        finally:
            board.end_run(key)
        tokens = outcome.tree.committed_tokens + driver.cancelled_tokens + driver.probe_tokens
        return Served(
            started_s=started_s,
            first_token_s=first_s,
            output_tokens=tokens,
            answer=outcome.finish.answer,
        )


# ---------------------------------------------------------------- the study


BUILDS: Mapping[str, Callable[[Path, int | None], Workload]] = {
    "votes": build_votes,
    "chains": build_chains,
    "mcts": build_trees,
}


def list_ways(workload: Workload, names: Sequence[str] | None) -> list[Way]:
    """names: all if None. fcfs is always among them: all are compared with it."""
    usual = ("fcfs", "fcfs+exit", "gang", "default order", "default")
    ways = [
        *(Way(variant=variant) for variant in usual),
        *(Way(variant=variant, is_admitted=False) for variant in ("fcfs", "gang")),
        *(Way(variant="fcfs", cap=cap) for cap in workload.caps),
    ]
    return [way for way in ways if names is None or way.name in ("fcfs", *names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The fields of the command that a load depends on."""

    name: str
    path: Path
    limit: int | None
    programs: int
    max_running: int

    @property
    def workload(self) -> Workload:
        return BUILDS[self.name](self.path, self.limit)


def serve_load(load: Load, capacity: float, task: Any) -> Rows:
    """Run one load. task: the fields of its way, its rate and its seed."""
    way, rate, seed = task
    count = len(load.workload.build(False))
    planned = plan(load.programs, rate * capacity, seed, "search=1", count)
    server = Server(load.workload, Way(**way), planned, load.max_running)
    return [record.to_json() for record in run_virtual(server.run())]


def measure_most(load: Load) -> float:
    """Programs a second that fcfs finishes while all are there at once."""
    rows = serve_load(load, 1.0, ({"variant": "fcfs"}, AT_ONCE, WARM_UP_SEED))
    ended_s: list[float] = [row["arrived_s"] + row["latency_s"] for row in rows]
    return load.programs / max(ended_s)


def study(load: Load, asked: argparse.Namespace) -> dict[str, Any]:
    """The figures of one workload."""
    workload, capacity = load.workload, measure_most(load)
    ways = list_ways(workload, asked.ways)
    tasks = [(asdict(w), r, s) for s in range(asked.seeds) for r in asked.rates for w in ways]
    fields = load.name, load.programs, load.limit, load.max_running, round(capacity, 4)
    kept = "-".join(map(str, ("recorded", *fields)))
    found: dict[Task, list[ProgramRecord]] = {
        (Way(**way).name, rate, seed): [ProgramRecord.from_json(row) for row in rows]
        for (way, rate, seed), rows in run_in_parallel(
            kept, partial(serve_load, load, capacity), tasks
        )
    }
    rights = {
        task: mean([record.answer == "right" for record in records])
        for task, records in found.items()
    }
    figures = summarize(found, rights, workload.factors)
    print(f"{load.name}: fcfs finishes {capacity:.3g} programs a second")
    print(format_study(figures, "of the capacity") + "\n")
    slo = build_slo(found, workload.factors)
    points: dict[float, Points] = {rate: {} for rate in asked.rates}
    for (name, rate, seed), records in found.items():
        met = compute_attainment(list_needed_scales(records, slo), 1.0) or 0.0
        points[rate].setdefault(name, []).append((met, rights[name, rate, seed]))
    return {
        "capacity_per_s": round(capacity, 4),
        "problems": len({record.problem for records in found.values() for record in records}),
        "gain_at_equal_attainment": {
            rate: compare_accuracy(one)
            for rate, one in points.items()
            if workload.caps and "default" in one
        },
        **figures,
    }


def compare_accuracy(points: Points) -> list[float]:
    """How many points more the default has right than fcfs, with or without admission or with as
    few paths for all as meet as many deadlines, between two of them by a straight line. points: by
    way, (seeds,) shares of deadlines met and of right answers. Returns the mean over seeds and the
    ends of its interval."""

    def measure(of: Sequence[int]) -> float:
        def find(way: str) -> tuple[float, float]:
            met, right = zip(*(points[way][seed] for seed in of), strict=True)
            return mean(met), mean(right)

        ours = find("default")
        met, right = zip(
            *sorted(find(way) for way in points if way == "fcfs" or way.startswith("fcfs, ")),
            strict=True,
        )
        # the most accurate of those that meet at least as many
        best = np.maximum.accumulate(np.array(right)[::-1])[::-1]
        return 100 * (ours[1] - float(np.interp(ours[0], met, best)))

    seeds = range(len(points["default"]))
    low, high = bootstrap(list(seeds), measure, draws=1000)
    return [round(one, 2) for one in (measure(seeds), low, high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("samples", "probed", "trees"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--workloads", nargs="+", choices=list(BUILDS), default=list(BUILDS))
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", help="names of the table's rows; all if not given")
    parser.add_argument("--max-running", type=int, default=MAX_RUNNING, help="programs at once")
    parser.add_argument("--limit", type=int, help="problems of a workload")
    asked = parse_arguments(
        parser,
        samples=SMALL / "scored_answers.jsonl.gz",
        probed=SMALL / "scored_answers.jsonl.gz",
        trees=SMALL / "recorded_trees.jsonl",
        programs=3,
        rates=[1.0, 2.0],
        seeds=1,
    )
    files = dict(zip(BUILDS, (asked.samples, asked.probed, asked.trees), strict=True))
    fields = {name: getattr(asked, name) for name in ("limit", "programs", "max_running")}
    figures = {
        name: study(Load(name=name, path=files[name], **fields), asked) for name in asked.workloads
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1) + "\n"
    (OUTPUT / "recorded_programs.json").write_text(text, encoding="utf-8")
    report(programs=asked.programs, seeds=asked.seeds, max_running=asked.max_running, **figures)


if __name__ == "__main__":
    main()
