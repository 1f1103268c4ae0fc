"""How long do the engines of a beam search wait between two levels, and for what?

    python -m scripts.bench.engine.level_gaps [--n 16 64 256] [--runs 3] [--rounds 2]
        [--before CHECKOUT] [--profile FILE]

A level is generated, scored and decided, and only then does the next one begin. The daemon of this
script is the product's. Its engines also write down when each request came and when each step began
and ended, and its drivers when a search gave commands; all clocks are Linux's monotonic one. The
bundled pair solves problems by beam search in two ways: `plain` (no speculation, scores when the
level is whole) and `usual` (the defaults of a machine whose engines have a processor each). With
`--before`, the script is copied into another checkout, and daemons of both run in turns (A B A B).

Printed are medians over levels, in milliseconds:

    to_verifier       last token of a level at the generator → first request at the verifier
    to_last_request   the same → last request of the level at the verifier
    verify            the same → last score at the verifier
    decide            last score at the verifier → the search's commands of the next level
    to_generator      last score at the verifier → first request at the generator
    send              the commands of a level → its last request at the generator
    send_cpu          the processor's time of `send` in the daemon, up to its message
    daemon_cpu        the processor's time of the daemon's loop in a level
    idle              the generator's time between two levels in which it computes nothing
    drafting          the rest of that time, in which it computes drafts
    partial_steps     steps that began before the last request of the level had come (a mean)
    verifier_steps    steps of the verifier in a level (a mean)

With early scores the verifier's first request comes before the last token, so `usual` has no
`to_verifier`. `--profile` writes a cProfile of the daemon's loop. The last line is JSON, which also
says whether each problem had one tree in all ways, rounds and checkouts.
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon.process import App, main, make_app
from flashedge.events import StepCompleted
from scripts.bench.daemon import ROOT, read_problems, report, start_daemon
from scripts.bench.flashtts.kv_rig import forget_kv

MODULE = "scripts.bench.engine.level_gaps"
ROUTE = "/levels"
WAYS = ("plain", "usual")
Figures = dict[str, list[float]]

# ---------------------------------------------------------------- inside an engine


def register() -> None:
    """vLLM's plugin: write down the requests and steps of an engine that our daemon started."""
    from flashedge.engine.vllm.inside.keys import STAGES_PIPE

    if not hasattr(multiprocessing.current_process(), STAGES_PIPE):
        return
    from vllm.v1.engine.core import EngineCore

    from flashedge.engine.vllm.inside.calls import CALLS
    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    if "read_timeline" in CALLS:
        return
    added: list[float] = []
    steps: list[tuple[float, float, int, int]] = []
    add, update = EngineCore.add_request, EdgeScheduler.update_from_output
    schedule, began = EdgeScheduler.schedule, [0.0]

    def add_noted(self: Any, *args: Any, **kwargs: Any) -> None:
        added.append(time.monotonic())
        add(self, *args, **kwargs)

    def schedule_noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        began[0] = time.monotonic()
        return schedule(self, *args, **kwargs)

    def update_noted(self: Any, scheduled: Any, ran: Any) -> Any:
        names = [self.drafts.find_name(each) for each in scheduled.num_scheduled_tokens]
        found = update(self, scheduled, ran)
        if names:
            drafts = names.count(None)
            steps.append((began[0], time.monotonic(), len(names) - drafts, drafts))
        return found

    def read(core: Any) -> Any:
        found = [list(added), list(steps)]
        added.clear()
        steps.clear()
        return found

    EngineCore.add_request = add_noted
    for name, noted in (("schedule", schedule_noted), ("update_from_output", update_noted)):
        setattr(EdgeScheduler, name, noted)
    CALLS["read_timeline"] = read


@contextmanager
def offer_plugin() -> Iterator[None]:
    """Let vLLM find `register` in the engines of daemons that are started meanwhile."""
    before = os.environ.get("PYTHONPATH")
    with TemporaryDirectory(prefix="flashedge-level-gaps-") as name:
        info = Path(name) / "flashedge_level_gaps-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: level-gaps\nVersion: 1\n")
        entry = f"[vllm.general_plugins]\nlevel_gaps = {MODULE}:register\n"
        (info / "entry_points.txt").write_text(entry)
        os.environ["PYTHONPATH"] = os.pathsep.join([name, str(ROOT), before or ""])
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before or ""


# ---------------------------------------------------------------- inside the daemon


def make_watched_app(config: Config, load: bool) -> App:
    """The daemon's app, with a route that chooses the way and returns what was written down."""
    from flashedge.engine.vllm.process.live_process import Outbox
    from flashedge.runtime.drive import driver
    from flashedge.runtime.served_pair import ServedPair
    from flashedge.search.base import Expand, Score

    turns: list[tuple[float, float, int, int]] = []
    sent: list[tuple[float, float]] = []
    pairs: list[Any] = []
    way, profiler = [WAYS[0]], cProfile.Profile()
    run, build, add = driver.Driver.run, ServedPair.build_engines, Outbox.add

    async def run_noted(self: Any) -> Any:
        follow = self._on_turn

        def note(tree: Any, commands: Sequence[Any]) -> None:
            children = sum(len(c.children) for c in commands if isinstance(c, Expand))
            scored = sum(len(c.nodes) for c in commands if isinstance(c, Score))
            turns.append((time.monotonic(), time.thread_time(), children, scored))
            follow(tree, commands)

        self._on_turn = note
        return await run(self)

    def build_noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        built = build(self, *args, **kwargs)
        pairs[:] = [self._engines]
        is_usual = way[0] == "usual"
        return built.switch(speculation=is_usual, early_scores=is_usual)

    async def add_noted(self: Any, request: Any) -> None:
        await add(self, request)
        sent.append((time.monotonic(), time.thread_time()))

    async def read(asked: dict[str, Any]) -> Any:
        way[0] = asked["way"]
        if asked.get("profile"):
            profiler.enable()
        if asked.get("dump"):
            profiler.disable()
            profiler.dump_stats(asked["dump"])
        found: list[Any] = [list(turns), list(sent)]
        turns.clear()
        sent.clear()
        for pair in pairs:
            for engine in (pair.generator, pair.verifier):
                found.append(await engine.process.call("read_timeline"))
            await forget_kv(pair)
        return found

    for owner, name, noted in (
        (driver.Driver, "run", run_noted),
        (ServedPair, "build_engines", build_noted),
        (Outbox, "add", add_noted),
    ):
        setattr(owner, name, noted)
    app = make_app(config, load)
    app.add_api_route(ROUTE, read, methods=["POST"])
    return app


# ---------------------------------------------------------------- the figures


def measure_levels(turns: Any, sent: Any, generator: Any, verifier: Any, into: Figures) -> None:
    """Add the figures of one search, whose levels lie between its commands."""
    begins = [at for at, _, children, _ in turns if children]
    scores = [at for at, _, _, scored in turns if scored]
    worked = [worked for _, worked, children, _ in turns if children]
    widths = [children for _, _, children, _ in turns if children]
    for level, (begin, score, following) in enumerate(
        zip(begins, scores, begins[1:], strict=False)
    ):
        (added, steps), (asked, passes) = generator, verifier
        last_token = max(end for _, end, rows, _ in steps if rows and begin < end < score)
        judged = [(b, e) for b, e, _, _ in passes if begin < e < following]
        requests = [at for at in asked if begin < at < following]
        ahead = [at for at in added if following < at]
        next_step = min((b for b, _, rows, _ in steps if rows and b > following), default=None)
        if not (judged and requests and ahead and next_step):
            continue  # everything was known, or nothing was generated
        upper = min((at for at in scores if at > following), default=float("inf"))
        expanded = [at for at in ahead if at < upper]
        own = [worked for at, worked in sent if at > following][: widths[level + 1]]
        last_score = max(e for _, e in judged)
        drafting = sum(
            min(e, next_step) - max(b, last_token)
            for b, e, rows, _ in steps
            if not rows and e > last_token and b < next_step
        )
        if requests[0] > last_token:  # no score is early
            into["to_verifier"].append(1e3 * (requests[0] - last_token))
        into["to_last_request"].append(1e3 * (requests[-1] - last_token))
        into["verify"].append(1e3 * (last_score - last_token))
        into["decide"].append(1e3 * (following - last_score))
        into["to_generator"].append(1e3 * (expanded[0] - last_score))
        into["send"].append(1e3 * (expanded[-1] - following))
        into["send_cpu"].append(1e3 * (own[-1] - worked[level + 1]))
        into["daemon_cpu"].append(1e3 * (worked[level + 1] - worked[level]))
        into["idle"].append(1e3 * (next_step - last_token - drafting))
        into["drafting"].append(1e3 * drafting)
        early = [b for b, _, rows, _ in steps if rows and following < b < expanded[-1]]
        into["partial_steps"].append(len(early))
        into["verifier_steps"].append(len(judged))


def summarize(found: Mapping[str, Figures]) -> dict[str, dict[str, float]]:
    def middle(name: str, values: list[float]) -> float:
        return round(mean(values) if name.endswith("_steps") else median(values), 2)

    return {
        case: {
            "levels": len(figures["idle"]),
            **{k: middle(k, values) for k, values in figures.items() if values and k != "tree"},
        }
        for case, figures in found.items()
    }


def measure_here(asked: argparse.Namespace) -> dict[str, Figures]:
    """Measure this checkout: the figures of all levels, by way and n."""
    problems = [item["problem"] for item in read_problems("heldout", asked.runs)]
    found: dict[str, Figures] = {}
    names = count()
    with offer_plugin(), start_daemon(MODULE) as daemon:
        control = httpx.Client(base_url=daemon.url, timeout=60.0)

        def ask(way: str, **more: Any) -> Any:
            return control.post(ROUTE, json={"way": way, **more}).json()

        def solve(problem: str, n: int, seed: int) -> float:
            """Returns a number that stands for the tree. The client is new, so that nothing is
            drafted from an earlier answer."""
            steps: dict[int, object] = {}
            with Client(daemon.url, name=f"search {next(names)}") as client:
                for _, event in client.solve({"problem": problem, "n": n, "seed": seed}):
                    if isinstance(event, StepCompleted):
                        steps[event.node] = event.token_ids
            return float(zlib.crc32(repr(sorted(steps.items())).encode()))

        ask(WAYS[0])
        solve(problems[0], 4, 99)
        for n in asked.n:
            cases = {way: found.setdefault(f"{way} n={n}", defaultdict(list)) for way in WAYS}
            for seed, problem in enumerate(problems):
                for way, figures in cases.items():
                    ask(way, profile=bool(asked.profile))
                    began = time.monotonic()
                    figures["tree"].append(solve(problem, n, seed))
                    figures["search_s"].append(time.monotonic() - began)
                    turns, sent, generator, verifier = ask(way)
                    measure_levels(turns, sent, generator, verifier, figures)
        if asked.profile:
            ask(WAYS[0], dump=asked.profile)
    return found


def measure_other(checkout: Path, asked: argparse.Namespace) -> dict[str, Figures]:
    """Measure another checkout by this script."""
    if checkout != ROOT:
        shutil.copy(__file__, checkout / "scripts" / "bench" / "engine")
    sizes = [str(n) for n in asked.n]
    command = [sys.executable, "-m", MODULE, "--values", "--n", *sizes, "--runs", str(asked.runs)]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(asked: argparse.Namespace) -> None:
    if asked.values:
        report(**measure_here(asked))
        return
    checkouts = {**({"before": asked.before} if asked.before else {}), "now": ROOT}
    found: dict[str, Figures] = defaultdict(lambda: defaultdict(list))
    for _ in range(asked.rounds):
        for name, checkout in checkouts.items():
            here = measure_here(asked) if asked.profile else measure_other(checkout, asked)
            for case, figures in here.items():
                for figure, values in figures.items():
                    found[f"{name} {case}"][figure] += values
            print(name, summarize(here), flush=True)
    trees = {
        n: len({tree for case in found if case.endswith(f" n={n}") for tree in found[case]["tree"]})
        for n in asked.n
    }
    same = set(trees.values()) == {asked.runs}
    report(load=round(os.getloadavg()[0], 1), same_trees=same, **summarize(found))


if __name__ == "__main__":
    if "--detached" in sys.argv:  # the command line of a daemon
        sys.exit(main(make=make_watched_app))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--profile")
    parser.add_argument("--values", action="store_true", help=argparse.SUPPRESS)
    measure(parser.parse_args())
