"""Shared by the scripts of the simulated 4090: the paper's three pairs, problems, tables, plots.

Each script answers one question, saves its tables and plots in runs/flashtts/ and prints JSON as
its last line. None of them measures anything: the device is simulated (`scripts.lab.benchmark`).
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar, cast

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from scripts.bench.daemon import ROOT
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.lengths import LENGTHS
from scripts.lab.benchmark.simulate import Bench, Question, build_bench, compare_rungs
from scripts.lab.statistics import interval

OUTPUT = Path("runs/flashtts")
WORKLOADS = ("aime", "amc")
WIDTHS = (8, 16, 32, 64, 128, 256, 512)
# arXiv 2509.00195 §6.1: models and share of the card's memory
PAIRS: Mapping[str, tuple[str, float]] = {
    "1.5B+1.5B": ("math-1.5b+skywork-1.5b", 0.4),
    "1.5B+7B": ("math-1.5b+shepherd-7b", 0.9),
    "7B+1.5B": ("math-7b+skywork-1.5b", 0.9),
}
WORKERS = 2
GAINS = frozenset({"goodput_gain", "gain_over_suffix"})
"""The gains over whole-path scoring, and over a verifier with a prefix cache."""
T = TypeVar("T")
R = TypeVar("R")


def choose_problem_count(n: int) -> int:
    """Choose fewer problems where a run is large, so that a script takes minutes on two cores."""
    return 2 if n <= 64 else 1


def build_cell(pair: str, workload: str, n: int, **fields: Any) -> Bench:
    """Build a cell of the study. fields: replace the study's fields of Question."""
    name, share = PAIRS[pair]
    given = {
        "gpu": "rtx4090",
        "pair": name,
        "strategy": "beam",
        "n": n,
        "workload": workload,
        "problems": choose_problem_count(n),
        "share": share,
    }
    return build_bench(Question(**{**given, **fields}), load_config())


def add_lengths_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths", choices=LENGTHS, default=LENGTHS[0], help="how step lengths are drawn"
    )


def climb_ladder(
    bench: Bench, row: int, ladder: Sequence[Rung], seed: int | None = None
) -> list[dict[str, Any]]:
    """Run one problem on each rung. Figures are compared with the first rung, and with suffix
    scoring if the ladder has it."""
    rows = compare_rungs(ladder, {rung.name: [bench.run(rung, row, seed)] for rung in ladder})
    dropped = {"rung", "about"}
    return [{k: v for k, v in row.items() if k not in dropped and v is not None} for row in rows]


def average_problems(problems: Sequence[list[dict[str, Any]]]) -> list[dict[str, float]]:
    """(problems, rungs) figures -> (rungs,) means. `same_trees` becomes a share. Both gains also
    have the ends of their 95 % bootstrap interval over problems, `_low` and `_high`."""
    averages = []
    for rung in zip(*problems, strict=True):
        row = {name: mean(float(one[name]) for one in rung) for name in rung[0]}
        for name in GAINS & row.keys():
            row[f"{name}_low"], row[f"{name}_high"] = interval([one[name] for one in rung])
        averages.append(row)
    return averages


def format_gain(row: Mapping[str, float], name: str) -> str:
    """Format a gain with its interval."""
    return f"{row[name]:.2f} ({row[f'{name}_low']:.2f}-{row[f'{name}_high']:.2f})"


def run_in_parallel(name: str, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Run the tasks in their order on two processes, and yield each with its result (JSON).

    Results are kept in the temporary folder until all are there, so that a study which is
    interrupted resumes. name: names the study.
    """
    kept = _SavedResults(name)
    left = [task for task in tasks if kept.find(task) is None]
    done = len(tasks) - len(left)
    with (
        ProcessPoolExecutor(WORKERS) as pool,
        show_bar("simulating", len(tasks), done=done, unit="tasks") as advance,
    ):
        for future in as_completed([pool.submit(_run_task, work, task) for task in left]):
            kept.add(*future.result())
            advance(1)
    for task in tasks:
        yield task, cast("R", kept.find(task))
    kept.forget()


def _run_task(work: Callable[[T], R], task: T) -> tuple[T, R]:
    return task, work(task)


class _SavedResults:
    """Results by task, in a file of JSON lines. Another version of the package starts anew."""

    def __init__(self, name: str) -> None:
        self._path = Path(tempfile.gettempdir()) / f"flashedge-{name}-{_hash_code()}.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self._found = {repr(_freeze(task)): result for task, result in map(json.loads, lines)}

    def find(self, task: Any) -> Any:
        return self._found.get(repr(_freeze(task)))

    def add(self, task: Any, result: Any) -> None:
        self._found[repr(_freeze(task))] = result
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([task, result]) + "\n")

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


def _freeze(task: Any) -> Any:
    return tuple(task) if isinstance(task, list | tuple) else task


def _hash_code() -> str:
    """Hash the code that decides what is simulated: the package, and the studies themselves."""
    digest = hashlib.sha256()
    for folder in ("flashedge", "scripts/bench"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


# ---------------------------------------------------------------- keeping


def save_json(name: str, figures: Any) -> None:
    """Write runs/flashtts/<name>.json."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def save_tables(
    name: str,
    about: str,
    tables: Iterable[str],
    script: str | None = None,
    note: str = "Simulated, not measured.",
) -> None:
    """Write runs/flashtts/<name>.md.

    script: the script that makes it, with its flags, if the name alone is not enough; note: whether
    the figures are measured.
    """
    note = f"{note} Made by the command below; docs/results/ says what it means."
    command = f"`python -m scripts.bench.flashtts.{script or name}`"
    body = "\n\n".join([f"# {about}", note, command, *tables])
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{name}.md").write_text(body + "\n", encoding="utf-8")


def format_table(
    columns: Sequence[object], rows: Iterable[Sequence[object]], about: str = ""
) -> str:
    """Format a Markdown table, with `about` above it."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (columns, *rows)]
    lines.insert(1, "|" + "---|" * len(columns))
    return "\n".join([f"**{about}**", "", *lines] if about else lines)


def locate_picture(name: str) -> Path:
    return OUTPUT / f"{name}.svg"
