"""`bench load`: many programs at once, as they arrive at a busy server or on a simulated card."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.cli.solve.strategy_flags import parse_strategy_flags
from flashedge.config import Config, load_config
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.files.journal import Journal
from flashedge.files.problems import FileProblem, read_problems
from flashedge.types import POLICY_NAMES
from scripts.lab.cli import file_digest, option, output_option, strategy_option, write_report
from scripts.lab.cli.simulate import GPU, PAIR

if TYPE_CHECKING:
    from scripts.lab.benchmark.load.plan import PlannedProgram
    from scripts.lab.benchmark.load.timings import ProgramRecord, Slo
    from scripts.lab.benchmark.simulate import Question

PROGRAMS, REPORT = "programs.jsonl", "report.json"
DEFAULT_N = 8
SIMULATED_PROBLEMS = 40
EPILOG = """\
[bold]Examples[/]
  flashedge bench load --rate 2 --minutes 1 --problems problems.jsonl
  flashedge bench load --rate 0.5 --arrivals bursty --mix chat=0.8,search=0.2 --problems FILE
  flashedge bench load --arrivals times.txt --problems FILE --slo chat=2,search=30
  flashedge bench load --simulated --rate 4 --policy fcfs

Programs arrive at their times, however busy the daemon is, so a rate above what it can serve fills
its queue. Ctrl-C keeps what has finished.
"""


_load, _programs, _deadlines, _card, _output = (
    partial(option, rich_help_panel=panel)
    for panel in ("Load", "Programs", "Deadlines", "Simulated card", "Output")
)


def load(
    problems: Annotated[
        Path | None, _programs("FILE", "What is asked: JSON lines of problem (and answer, id).")
    ] = None,
    rate: Annotated[
        float | None, _load("X", "Programs a second. It needs no value with a file of arrivals.")
    ] = None,
    minutes: Annotated[
        float,
        _load(
            "X",
            "How long programs arrive. The load lasts until the last one has finished.",
            min=0.01,
            max=1440.0,
        ),
    ] = 1.0,
    arrivals: Annotated[
        str,
        _load(
            "NAME",
            "poisson: independent of each other. bursty: the same, three times as many during a"
            " fifth of the time. Else a file of seconds, one a line.",
        ),
    ] = "poisson",
    mix: Annotated[
        str,
        _load(
            "KIND=SHARE,…",
            "Which share of the programs are chats, searches and batch work: chat, search, batch.",
        ),
    ] = "chat=0.5,search=0.5",
    clients: Annotated[
        int, _load("N", "Clients that the programs are from.", min=1, max=10_000)
    ] = 4,
    seed: Annotated[
        int, _load("N", "The same seed gives the same programs at the same times.", min=0)
    ] = 0,
    limit: Annotated[int | None, _programs("N", "Use the first N problems.", min=1)] = None,
    pair: Annotated[
        str | None, _programs("PAIR", "Pair of models.", show_default="the setting `pair`")
    ] = None,
    strategy: Annotated[
        str,
        strategy_option(
            "NAME[-N]", "How searches search; beam-16 also sets --n.", rich_help_panel="Programs"
        ),
    ] = "beam",
    n: Annotated[
        int | None, _programs("N", "Paths of a search.", "--n", "-n", show_default="8")
    ] = None,
    max_tokens: Annotated[
        int | None,
        _programs(
            "N", "Most tokens of a chat's answer, and of a path.", min=1, show_default="the pair's"
        ),
    ] = None,
    slo: Annotated[
        str | None,
        _deadlines(
            "KIND=SECONDS,…",
            "Base deadline of each kind, such as chat=2,search=30.",
            show_default="none",
        ),
    ] = None,
    slo_scale: Annotated[float, _deadlines("X", "Multiplies all deadlines.", min=0.001)] = 1.0,
    difficulty: Annotated[
        list[Path] | None,
        _deadlines(
            "FILE",
            "Results of `solve --input` on the same problems, many of each, or lines of id and"
            " factor. A problem that is always answered right has factor 1, never 3, else 2.",
            show_default="factor 2 for all",
        ),
    ] = None,
    simulated: Annotated[
        bool,
        _card(
            None,
            "Simulate a card in virtual time; no engine runs. Searches ask problems of MATH, chats"
            " are long, and their lengths are predicted with an error.",
            "--simulated",
        ),
    ] = False,
    gpu: Annotated[
        str | None, _card("CARD", "The card: rtx3090, rtx4080, rtx4090, rtx5090.", show_default=GPU)
    ] = None,
    policy: Annotated[
        str | None,
        _card(
            "NAME",
            "Which program goes first, instead of the setting scheduling_policy: "
            f"{', '.join(POLICY_NAMES)}.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        output_option(
            "programs", rich_help_panel="Output", show_default="a folder of the state directory"
        ),
    ] = None,
    as_json: Annotated[bool, _output(None, "Print the report as JSON.", "--json")] = False,
) -> None:
    """Send many programs, chats and searches, at random times, and measure how each fares.

    It reports times per token, to the first token and to the end, deadlines met, fairness, and
    whether short programs went first.
    """
    from scripts.lab.benchmark.live import grade_pairs
    from scripts.lab.benchmark.load import plan, timings
    from scripts.lab.benchmark.load.report import build_report, print_report

    search_name, paths = parse_strategy_flags(strategy, n)
    process, shares = plan.choose_arrivals(arrivals, rate), plan.parse_mix(mix)
    deadlines = timings.Slo(
        base_s={} if slo is None else plan.parse_by_kind("--slo", slo),
        scale=slo_scale,
        factors=timings.read_factors(difficulty or ()),
    )

    def draw(count: int) -> Sequence[PlannedProgram]:
        found = plan.plan_programs(
            process, shares, duration_s=60 * minutes, problems=count, clients=clients, seed=seed
        )
        if not found:
            raise RequestError(
                "no program arrives in this time", hint="raise --rate or --minutes", param="minutes"
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
    needless = {"problems": problems, "output": folder, "max-tokens": max_tokens}
    for flag, given in (needless if simulated else {"gpu": gpu, "policy": policy}).items():
        if given is not None:
            raise RequestError(
                f"--{flag} {'has no meaning with' if simulated else 'needs'} --simulated",
                hint=f"leave --{flag} out" if simulated else "add --simulated",
                param=flag.replace("-", "_"),
            )
    if simulated:
        from scripts.lab.benchmark.simulate import Question

        question = Question(
            gpu=gpu or GPU,
            pair=pair or PAIR,
            strategy=search_name or strategy,
            n=width,
            problems=limit or SIMULATED_PROBLEMS,
            share=None,
        )
        config = load_config({"scheduling_policy": policy})
        _simulate(question, config, draw, deadlines, about, as_json)
        return
    if problems is None:
        raise RequestError(
            "there are no problems to ask",
            hint="add --problems FILE, or --simulated",
            param="problems",
        )
    config = load_config({"pair": pair})
    asked = read_problems(problems, limit)
    programs = draw(len(asked))
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
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    folder = folder or config.state_dir / "benches" / f"load-{config.pair}-{digest}"
    interrupted: KeyboardInterrupt | FlashEdgeError | None = None
    with Journal(
        folder / PROGRAMS,
        settings,
        timings.ProgramRecord.from_json,
        key=lambda record: record.number,
    ) as kept:
        try:
            _measure(config, programs, asked, kept, search, limits)
        except (KeyboardInterrupt, FlashEdgeError) as error:
            interrupted = error
        records = [kept.records[p.number] for p in programs if p.number in kept.records]
    if records:
        known = {p.id: p.answer for p in asked if p.answer is not None}
        grades = asyncio.run(grade_pairs([(r.problem, r.answer) for r in records], known))
        loaded = {"load": {**settings, "file": str(problems)}}
        report = loaded | build_report(records, deadlines, grades)
        write_report(folder / REPORT, report)
        if as_json:
            output.print_json(report)
        else:
            print_report(report)
        output.note(f"wrote {PROGRAMS} and {REPORT} in {folder}")
    if interrupted is not None:
        output.note(
            f"interrupted after {len(records)} of {len(programs)} programs; they are stored, and"
            " the same command resumes with the others, on a daemon that is idle at first"
        )
        raise interrupted


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
    from scripts.lab.benchmark.load.open_load import DaemonServer, run_load

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
                serve = DaemonServer(
                    client=client, problems=problems, model=config.pair, search=search, chat=chat
                ).serve
                ids = [problem.id for problem in problems]
                await run_load(left, serve, keep, problem_ids=ids, part=part)

    asyncio.run(work())


def _simulate(
    question: Question,
    config: Config,
    draw: Callable[[int], Sequence[PlannedProgram]],
    slo: Slo,
    about: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Raises what `benchmark.simulate.build_bench` does."""
    from scripts.lab.benchmark.load import virtual_load
    from scripts.lab.benchmark.load.report import build_report, print_report
    from scripts.lab.benchmark.simulate import build_bench

    load = virtual_load.build_virtual_load(build_bench(question, config), config)
    records = virtual_load.run_virtual_load(load, draw(len(load.search_rows)))
    found = virtual_load.measure_load_dispersion(load)
    dispersion = {kind: one.to_json() for kind, one in found.items()}
    settings = {
        **about,
        "simulated": True,
        "pair": question.pair,
        "gpu": question.gpu,
        "policy": config.scheduling_policy,
        "dispersion": dispersion,
    }
    report = {"load": settings, **build_report(records, slo)}
    if as_json:
        output.print_json(report)
        return
    output.say(
        f"SIMULATED: {question.pair} on {question.gpu}, policy {config.scheduling_policy}. This is"
        " a roofline model of the card in virtual time, not a measurement."
    )
    for kind, row in dispersion.items():
        output.say(
            f"Lengths of one {'path' if kind == 'search' else 'answer'} ({kind}):"
            f" {row['mean_tokens']:.0f} tokens, coefficient of variation {row['within_cv']:.2f}"
            f" within a prompt, {row['between_cv']:.2f} between prompts."
        )
    print_report(report)
