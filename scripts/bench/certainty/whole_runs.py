"""Runs at full compute: made once through the daemon, then read by every measurement.

The daemon's store keeps the runs. The graded traces for replay are also cached under
`runs/certainty/`, which git ignores, so that a measurement can be repeated without a daemon.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.certainty.calibration import Ending, RunTrace
from flashedge.certainty.measures import Checkpoint
from flashedge.cli.calibrate import find_right_answers, run_problems
from flashedge.cli.connection import connect_ready
from flashedge.config import Config, load_config
from flashedge.files.problems import LabelledProblem, read_labelled
from flashedge.models.folders import fingerprint_pair
from flashedge.models.registry import find_pair
from flashedge.runtime.records.recordings import Recording
from scripts.train_pair.problems import CALIBRATION_SEEDS, make_problem, write_problems

FOLDER = Path("runs/certainty")
CALIBRATION = FOLDER / "calibration.jsonl"


def write_calibration_problems(path: Path, count: int, heldout: Path) -> None:
    """Write `count` seeded problems whose texts differ from each other and from the held-out ones.

    They come from the calibration seeds, on which the bundled pair was not trained.
    """
    seen = {problem.text for problem in read_labelled(heldout)}
    chosen = []
    for seed in CALIBRATION_SEEDS:
        problem = make_problem(seed)
        if problem.text not in seen:
            seen.add(problem.text)
            chosen.append(problem)
        if len(chosen) == count:
            break
    write_problems(path, iter(chosen))


def record_whole_runs(
    problems: Sequence[LabelledProblem],
    file: str,
    strategy: str,
    n: int,
    config: Config,
    options: Mapping[str, Any],
) -> tuple[Recording, ...]:
    """Run each problem of the file with this name once. options: the strategy's own."""
    with connect_ready(config) as client:
        pair = find_pair(client.status()["pair"], config)
    settings = {"strategy": strategy, "n": n, "early_exit": False}
    settings |= {"pair": pair.name, "options": dict(options)}
    return run_problems(problems, settings, f"whole {file}", config)


def load_traces(
    path: Path, strategy: str, n: int, options: Mapping[str, Any], limit: int | None = None
) -> tuple[RunTrace, ...]:
    """Load the graded traces of a problem file from the cache, or make them."""
    config = load_config({})
    pair = fingerprint_pair(find_pair(config.pair, config), config)
    key = repr((pair, path.read_text(), strategy, n, sorted(options.items()), limit))
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    cache = FOLDER / f"{path.stem}-{strategy}-{n}-{digest}.jsonl"
    if not cache.exists():
        problems = read_labelled(path, limit)
        runs = record_whole_runs(problems, path.name, strategy, n, config, options)
        right = find_right_answers(runs, {problem.text: problem.answer for problem in problems})
        traces = [run.build_trace(known) for run, known in zip(runs, right, strict=True)]
        write_traces(cache, traces)
    return read_traces(cache)


def write_traces(path: Path, traces: Iterable[RunTrace]) -> None:
    """Write one trace on each line."""
    lines = [
        json.dumps(
            {
                "problem": trace.problem,
                "cap": trace.cap,
                "checkpoints": [
                    [c.progress, c.tokens, c.answers, dict(c.measures)] for c in trace.checkpoints
                ],
                "stops": [[e.right, e.tokens, e.overhead] for e in trace.stops],
                "whole": [trace.whole.right, trace.whole.tokens, trace.whole.overhead],
            }
        )
        for trace in traces
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read_traces(path: Path) -> tuple[RunTrace, ...]:
    """Invert `write_traces`."""
    return tuple(_parse_trace(json.loads(line)) for line in path.read_text().splitlines())


def _parse_trace(row: Mapping[str, Any]) -> RunTrace:
    def parse_ending(fields: Sequence[Any]) -> Ending:
        right, tokens, overhead = fields
        return Ending(right=right, tokens=tokens, overhead=overhead)

    return RunTrace(
        problem=row["problem"],
        cap=row["cap"],
        checkpoints=tuple(
            Checkpoint(progress=progress, tokens=tokens, answers=answers, measures=measures)
            for progress, tokens, answers, measures in row["checkpoints"]
        ),
        stops=tuple(map(parse_ending, row["stops"])),
        whole=parse_ending(row["whole"]),
    )
