"""`bench load`: many programs at once, as they arrive at a busy server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.cli.solve.strategy_flags import parse_strategy_flags
from flashedge.config import Config, load_config
from flashedge.errors import FlashEdgeError, RequestError
from scripts.lab.cli.bench import load_options as options
from scripts.lab.cli.bench.load_simulated import check_real_only, check_unused, simulate_load
from scripts.lab.cli.bench.load_view import print_report

if TYPE_CHECKING:
    from flashedge.files.journal import Journal
    from flashedge.files.problems import FileProblem
    from scripts.lab.benchmark.load.plan import PlannedProgram
    from scripts.lab.benchmark.load.record import ProgramRecord
    from scripts.lab.benchmark.load.report import Grades
    from scripts.lab.benchmark.load.slo import Slo

PROGRAMS, REPORT = "programs.jsonl", "report.json"
DEFAULT_N = 8
EPILOG = """\
[bold]Examples[/]
  flashedge bench load --rate 2 --minutes 1 --problems problems.jsonl
  flashedge bench load --rate 0.5 --arrivals bursty --mix chat=0.8,search=0.2 --problems FILE
  flashedge bench load --arrivals times.txt --problems FILE --slo chat=2,search=30
  flashedge bench load --simulated --rate 4 --policy fcfs

Programs arrive at their times, however busy the daemon is, so a rate above what it can serve fills
its queue. Ctrl-C keeps what has finished.
"""


def load(
    problems: options.Problems = None,
    rate: options.Rate = None,
    minutes: options.Minutes = 1.0,
    arrivals: options.Arrivals = "poisson",
    mix: options.Mix = "chat=0.5,search=0.5",
    clients: options.Clients = 4,
    seed: options.Seed = 0,
    limit: options.Limit = None,
    pair: options.Pair = None,
    strategy: options.Strategy = "beam",
    n: options.Paths = None,
    max_tokens: options.MaxTokens = None,
    slo: options.Slo = None,
    slo_scale: options.SloScale = 1.0,
    difficulty: options.Difficulty = None,
    simulated: options.Simulated = False,
    gpu: options.Gpu = None,
    policy: options.Policy = None,
    folder: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Send many programs, chats and searches, at random times, and measure how each fares.

    It reports times per token, to the first token and to the end, deadlines met, fairness, and
    whether short programs went first.
    """
    from flashedge.files.problems import file_digest, read_problems
    from scripts.lab.benchmark.load.arrivals import choose_arrivals
    from scripts.lab.benchmark.load.plan import parse_by_kind, parse_mix, plan_programs
    from scripts.lab.benchmark.load.slo import Slo, read_factors

    search_name, paths = parse_strategy_flags(strategy, n)
    process, shares = choose_arrivals(arrivals, rate), parse_mix(mix)
    deadlines = Slo(
        base_s={} if slo is None else parse_by_kind("--slo", slo),
        scale=slo_scale,
        factors=read_factors(difficulty or ()),
    )

    def plan(count: int) -> Sequence[PlannedProgram]:
        """Draw the programs of so many problems."""
        found = plan_programs(
            process, shares, duration_s=60 * minutes, problems=count, clients=clients, seed=seed
        )
        if not found:
            raise RequestError(
                "no program arrives in this time",
                hint="raise --rate or --minutes",
                param="minutes",
            )
        return found

    width = paths or DEFAULT_N
    about = {
        "rate": rate,
        "arrivals": arrivals,
        "minutes": minutes,
        "mix": {str(kind): share for kind, share in sorted(shares.items())},
        "clients": clients,
        "seed": seed,
        "strategy": search_name,
        "n": width,
    }
    if simulated:
        check_real_only(problems=problems, output=folder, max_tokens=max_tokens)
        simulate_load(
            plan,
            deadlines,
            pair=pair,
            gpu=gpu,
            policy=policy,
            strategy=search_name or strategy,
            n=width,
            limit=limit,
            about=about,
            as_json=as_json,
        )
        return
    check_unused(gpu=gpu, policy=policy)
    if problems is None:
        raise RequestError(
            "there are no problems to ask",
            hint="add --problems FILE, or --simulated",
            param="problems",
        )
    config = load_config({"pair": pair})
    asked = read_problems(problems, limit)
    programs = plan(len(asked))
    limits = {} if max_tokens is None else {"max_tokens": max_tokens}
    search = {"strategy": search_name, "n": width, **limits}
    settings = {
        **about,
        "pair": config.pair,
        "problems": file_digest(problems),
        "limit": limit,
        "arrivals": arrivals if rate is not None else file_digest(Path(arrivals)),
        **limits,
    }
    name = f"load-{config.pair}-{_digest(settings)}"
    folder = folder or config.state_dir / "benches" / name
    interrupted: KeyboardInterrupt | FlashEdgeError | None = None
    with _open_records(folder, settings) as kept:
        try:
            _measure(config, programs, asked, kept, search, limits)
        except (KeyboardInterrupt, FlashEdgeError) as error:
            interrupted = error
        records = [kept.records[p.number] for p in programs if p.number in kept.records]
    if records:
        _report(records, asked, deadlines, folder, {**settings, "file": str(problems)}, as_json)
    if interrupted is None:
        return
    output.note(
        f"interrupted after {len(records)} of {len(programs)} programs; they are stored, and the"
        " same command resumes with the others, on a daemon that is idle at first"
    )
    if isinstance(interrupted, FlashEdgeError):
        raise interrupted
    raise typer.Exit(exit_codes.INTERRUPTED)


def _digest(settings: Mapping[str, Any]) -> str:
    """8 hex digits that stand for the load."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _open_records(folder: Path, settings: Mapping[str, Any]) -> Journal[int, ProgramRecord]:
    """The programs of an earlier call with the same load. Raises Conflict, StoreError."""
    from flashedge.files.journal import Journal
    from scripts.lab.benchmark.load.record import ProgramRecord

    return Journal(
        folder / PROGRAMS, settings, ProgramRecord.from_json, key=lambda record: record.number
    )


def _measure(
    config: Config,
    programs: Sequence[PlannedProgram],
    problems: Sequence[FileProblem],
    kept: Journal[int, ProgramRecord],
    search: Mapping[str, Any],
    chat: Mapping[str, Any],
) -> None:
    """Run the programs that have no record. Raises DaemonError, RequestError, StoreError."""
    from flashedge.daemon import control as daemon_control
    from scripts.lab.benchmark.load.daemon_server import DaemonServer
    from scripts.lab.benchmark.load.open_load import run_load

    left = [program for program in programs if program.number not in kept.records]
    if not left:
        output.note("an earlier call ran the whole load; give another --output to run it again")
        return
    part = 1 + max((record.part for record in kept.records.values()), default=-1)
    connect_ready(config).close()
    total, done = len(programs), len(kept.records)

    async def work() -> None:
        with show_bar("load", total, done=done, unit="programs") as advance:

            def keep(record: ProgramRecord) -> None:
                kept.append(record)
                advance(1)

            async with daemon_control.connect_async(config, max_streams=len(left)) as client:
                server = DaemonServer(
                    client=client,
                    problems=problems,
                    model=config.pair,
                    search=search,
                    chat=chat,
                )
                ids = [problem.id for problem in problems]
                await run_load(left, server, keep, problem_ids=ids, part=part)

    asyncio.run(work())


def _report(
    records: Sequence[ProgramRecord],
    problems: Sequence[FileProblem],
    slo: Slo,
    folder: Path,
    about: Mapping[str, Any],
    as_json: bool,
) -> None:
    from scripts.lab.benchmark.load.report import build_report

    report = {"load": about, **build_report(records, slo, _grade(records, problems))}
    output.write_json(folder / REPORT, report)
    if as_json:
        output.print_json(report)
    else:
        print_report(report)
    output.note(f"wrote {PROGRAMS} and {REPORT} in {folder}")


def _grade(records: Sequence[ProgramRecord], problems: Sequence[FileProblem]) -> Grades:
    from scripts.lab.benchmark.grades import grade_pairs

    known = {p.id: p.answer for p in problems if p.answer is not None}
    return asyncio.run(grade_pairs([(r.problem, r.answer) for r in records], known))
