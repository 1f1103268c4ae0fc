"""The figures of the FlashTTS paper that need no real engine, by today's code (simulated).

    python -m scripts.bench.flashtts.paper_figures [--only searches speculation ...]

    searches     Fig. 11: do other searches gain as much?
    speculation  Fig. 16: how busy is the card over a level, and what do the paper's rule for slots
                 and its truncation R bring beside ours?
    memory       Fig. 17, right: what are order and split worth, each alone, where memory is short,
                 and what does a limit on the batches (Eq. 1) add?
    order        Fig. 17, left: how much KV do b paths hold, by the order in which they are taken?
    phases       Figs. 6 and 10: how much KV does each phase need, how is it split, and how long
                 does the search for the split take? Nothing runs for these: the cost model alone

1.5B + 1.5B on the simulated 4090 (`study.py`), smooth step lengths. The problems of `searches` and
`speculation` are those of MATH level 5, those of `memory` and `order` the longest of 100 of MATH:
their paths have some 800 tokens. All arms of a problem have its seed. What is compared is given as
the mean over problems of the ratio on the same problem, with its 95 % bootstrap interval. Each run
is written to --out when it ends, and a run that is there is not repeated; the tables have all runs
that are there. The last line is JSON.

The paper's rules that the product has not are `paper_rules`.

Ref: arXiv 2509.00195 §4.3, §6.
"""

import argparse
import json
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from flashedge.errors import ConfigError
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.engines import Ordering
from flashedge.scheduling.costs import RooflineCurve, count_flops
from flashedge.scheduling.kv.split import KvMemory, KvSplit
from flashedge.scheduling.kv.stages import EngineCost, Workload
from flashedge.scheduling.prefix_order import (
    Order,
    Paths,
    order_by_arrival,
    order_by_prefix,
    order_by_sweep,
)
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.search.tree import Tree
from flashedge.types import NodeId
from scripts.bench.daemon import report
from scripts.bench.flashtts.ladder_real import digest_tree
from scripts.bench.flashtts.orders import random_order, scattered_order
from scripts.bench.flashtts.paper_rules import (
    LimitingManager,
    PaperBoard,
    PaperSpeculator,
    count_new_tokens,
)
from scripts.bench.flashtts.study import OUTPUT, PAIRS, build_cell, format_table
from scripts.bench.smoke import is_smoke, parse_arguments
from scripts.lab.benchmark.devices import OVERHEADS, find_card
from scripts.lab.benchmark.ladder import SUFFIX, Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import simulate_run
from scripts.lab.sim.scheduler import Slice
from scripts.lab.statistics import interval

PAIR = "1.5B+1.5B"
ALL = 100
"""Problems of MATH that there are samples of."""
PATH_TOKENS, CONTEXT = 2048, 2304
"""Most tokens of a path, and of prompt and path, where memory is short: each engine has to hold one
of full length."""

# ---------------------------------------------------------------- what is run


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    optimizations: Optimizations
    order: str | None = None
    """None: as the optimizations have it."""
    setup: Mapping[str, Any] | None = None
    """Fields of `Setup` in place of the product's."""


CACHED = SUFFIX.optimizations  # a verifier with a prefix cache, half of the memory each
MOVED = replace(CACHED, kv_split=True, offload=True)
MEMORY = replace(MOVED, prefix_order=True)
DRAFTED = replace(MEMORY, speculation=True)


def draft_as(slots: type[DraftBoard], ratio: float | None) -> Arm:
    kind = type("PaperSpeculator", (PaperSpeculator,), {"slots": slots, "ratio": ratio})
    return Arm(optimizations=DRAFTED, setup={"speculator": kind})


ARMS: Mapping[str, Mapping[str, Arm]] = {
    "searches": {
        "whole paths": Arm(optimizations=Optimizations.none()),
        "prefix cache": Arm(optimizations=CACHED),
        "P+M+S": Arm(optimizations=DRAFTED),
    },
    "speculation": {
        "none": Arm(optimizations=MEMORY),
        "ours": Arm(optimizations=DRAFTED),
        "ours, R = 0.85": draft_as(DraftBoard, 0.85),
        "slots": draft_as(PaperBoard, None),
        **{f"slots, R = {r:g}": draft_as(PaperBoard, r) for r in (0.5, 0.85, 1.0)},
    },
    "memory": {
        "arrival": Arm(optimizations=CACHED, order="arrival"),
        "random": Arm(optimizations=CACHED, order="random"),
        "order": Arm(optimizations=CACHED, order="sweep"),
        "split": Arm(optimizations=MOVED, order="arrival"),
        "order+split": Arm(optimizations=MEMORY),
        "order+split+limits": Arm(optimizations=MEMORY, setup={"manager": LimitingManager}),
    },
    "order": {"any": Arm(optimizations=CACHED)},
}
STRATEGIES = ("beam", "dvts", "dynamic_branching", "varying_granularity", "rebase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a row of a table is about."""

    study: str
    strategy: str = "beam"
    n: int
    overheads: str = "typical"
    gb: float | None = None
    """KV of both engines together. None: what the card has."""
    problems: int
    """How many are run: the first ones of `list_rows`."""

    def build_bench(self) -> Bench:
        fields = {"strategy": self.strategy, "overheads": OVERHEADS[self.overheads]}
        if self.study in ("searches", "speculation"):
            return build_cell(PAIR, "aime", self.n, problems=self.problems, **fields)
        bench = build_cell(PAIR, "math", self.n, problems=ALL, **fields)
        setup = replace(bench.setup, limits=(CONTEXT, CONTEXT))
        if self.gb is not None:
            setup = replace(setup, kv_bytes=round(self.gb * 1e9))
        search = replace(bench.search, max_path_tokens=PATH_TOKENS)
        return replace(bench, setup=setup, search=search)

    def list_rows(self) -> tuple[int, ...]:
        """All problems in one order, so that more of them begin with the same ones: the longest
        first where memory is short, else few that are spread over the lengths, then more."""
        if self.study in ("memory", "order"):
            return self.build_bench().rows[::-1]
        few = (replace(self, problems=count).build_bench().rows for count in (4, 8, ALL))
        return tuple(dict.fromkeys(chain(*few)))


def list_cells() -> Iterator[Cell]:
    for n, problems in ((16, 8), (64, 4)):
        for strategy in STRATEGIES:
            yield Cell(study="searches", strategy=strategy, n=n, problems=problems)
    for n, overheads, problems in (
        (16, "typical", 25),
        (64, "typical", 12),
        (256, "typical", 3),
        (16, "low", 8),
        (64, "low", 4),
    ):
        yield Cell(study="speculation", n=n, overheads=overheads, problems=problems)
    for gb in (0.15, 0.2, 0.3, 0.5):
        yield Cell(study="memory", n=64, gb=gb, problems=8)
    for gb in (1.5, 0.5):
        yield Cell(study="memory", n=512, gb=gb, problems=3)
    yield Cell(study="order", n=256, problems=4)


def get_order(name: str, seed: int) -> Ordering:
    random = Random(seed)

    def shuffle(paths: Paths) -> Order:
        return random_order(paths, random)

    return {"arrival": order_by_arrival, "sweep": order_by_sweep, "random": shuffle}[name]


def run_case(cell: Cell, name: str, row: int) -> dict[str, Any]:
    """Run one problem of a cell with an arm."""
    bench, arm = cell.build_bench(), ARMS[cell.study][name]
    setup = replace(bench.setup, **(arm.setup or {}))
    busy = BusyCard(setup.device.flops, {"generator": setup.generator, "verifier": setup.verifier})
    run = simulate_run(
        Rung(name=name, about="", optimizations=arm.optimizations),
        setup,
        bench.trace,
        bench.spec(row),
        on_step=busy.note,
        order=None if arm.order is None else get_order(arm.order, row),
    )
    found = {
        "seconds": run.seconds,
        "goodput": run.goodput,
        "preemptions": run.preemptions,
        "reuse": run.verifier_cached_tokens / max(1, run.verifier_tokens),
        "moves": run.split_moves + run.offloads,
        "path_tokens": mean(
            node.path_tokens for node in run.tree.nodes.values() if node.status == "complete"
        ),
        "generator_peak_mb": run.generator_peak_bytes / 1e6,
        "kept_steps": run.speculation.kept_steps / (len(run.tree.nodes) - 1),
        "kept_tokens": run.speculation.kept_tokens,
        "drawn_tokens": run.speculation.drawn_tokens,
        "tokens": run.tree.committed_tokens,
        "tree": digest_tree(run.tree),
        **busy.summarize(),
    }
    if cell.study == "order":
        found["orders"] = measure_orders(run.tree, bench, row)
    return found


class BusyCard:
    """Sums up how busy the generator is in the first and the second half of its steps of a level,
    and the verifier."""

    def __init__(self, flops: float, shapes: Mapping[str, Any]) -> None:
        self._flops, self._shapes = flops, shapes
        self._level: list[tuple[float, float, int]] = []
        self._sums: dict[str, list[float]] = {}
        self._most: dict[str, int] = {}

    def note(self, engine: str, batch: tuple[Slice, ...], took_s: float) -> None:
        flops = sum(count_flops(self._shapes[engine], work.context, work.new) for work in batch)
        step = flops / self._flops, took_s, len(batch)
        if engine == "verifier":
            self._end_level()
            self._add("verifier", [step])
        elif not all(work.sequence.is_draft for work in batch):
            self._level.append(step)

    def _end_level(self) -> None:
        half = len(self._level) // 2
        self._add("first half", self._level[:half])
        self._add("second half", self._level[half:])
        self._level = []

    def _add(self, part: str, steps: Iterable[tuple[float, float, int]]) -> None:
        sums = self._sums.setdefault(part, [0.0, 0.0, 0.0])
        for busy_s, took_s, sequences in steps:
            self._most[part] = max(sequences, self._most.get(part, 0))
            for i, value in enumerate((busy_s, took_s, sequences * took_s)):
                sums[i] += value

    def summarize(self) -> dict[str, dict[str, float]]:
        """Share of peak FLOP/s, and sequences, as means over time; the largest batch."""
        return {
            part: {
                "utilization": busy_s / took_s,
                "sequences": sequences / took_s,
                "most_sequences": self._most[part],
            }
            for part, (busy_s, took_s, sequences) in self._sums.items()
            if took_s
        }


# ---------------------------------------------------------------- order and phases


def measure_orders(tree: Tree, bench: Bench, row: int) -> dict[str, list[float]]:
    """The MB of KV of a quarter, half, three quarters and all of the paths of the level with most
    tokens, by order."""
    levels: dict[int, list[NodeId]] = {}
    for node in tree.nodes.values():
        if node.segment is not None:
            levels.setdefault(node.depth, []).append(node.id)
    widest = max(levels.values(), key=lambda ids: sum(tree[i].path_tokens for i in ids))
    paths = [[at.id for at in tree.path(node)] for node in widest]
    orders = {
        "prefix": order_by_prefix(paths),
        "arrival": order_by_arrival(paths),
        "random": random_order(paths, Random(row)),
        "scattered": scattered_order(paths),
    }
    token_mb = bench.setup.generator.kv_bytes_per_token / 1e6
    prompt = bench.trace.rows[row].prompt_tokens

    def count_mb(order: Order) -> float:
        nodes = {node for i in order for node in paths[i]}
        return token_mb * (prompt + sum(tree[node].num_tokens for node in nodes))

    return {
        name: [count_mb(order[: len(paths) * k // 4]) for k in (1, 2, 3, 4)]
        for name, order in orders.items()
    }


def tabulate_phases() -> tuple[list[str], dict[str, Any]]:
    """Figs. 6 and 10 from the cost model."""
    context, share, batches = 512, 0.8, range(1, 513)
    setup, needs = build_cell("7B+1.5B", "aime", 8).setup, {}
    for shape in (setup.verifier, setup.generator):
        curve = RooflineCurve(device=setup.device, shape=shape)
        prefill, decode = curve.prefill_at(0, context), curve.decode_at(context)
        rates = [b / prefill(b) for b in batches], [b / decode(b) for b in batches]
        path_gb = context * shape.kv_bytes_per_token / 1e9
        needs[shape.name] = [path_gb * (1 + bisect_left(r, share * max(r))) for r in rates]
    first = format_table(
        ("model", "prefill, GB", "decode, GB", "ratio"),
        [(name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.0f}") for name, (a, b) in needs.items()],
        f"KV with which {share:.0%} of the largest throughput is reached, paths of 512 tokens",
    )
    load = Workload(paths=256, context_tokens=400, live_tokens=100 + 300 * 64, step_tokens=52)
    rows, took_ms = [], []
    for pair in PAIRS:
        setup = build_cell(pair, "aime", 256).setup
        generator, verifier = (
            EngineCost(
                curve=RooflineCurve(device=setup.device, shape=shape),
                kv_bytes_per_token=shape.kv_bytes_per_token,
                block_tokens=16,
                max_batch=256,
            )
            for shape in (setup.generator, setup.verifier)
        )
        splits: list[tuple[float, KvSplit]] = []
        for gb in (0.5, 1, 1.5, 2, 3, 4, 6, 8, 14):
            memory = KvMemory(
                generator=generator,
                verifier=verifier,
                kv_bytes=round(gb * 1e9),
                link=find_card("rtx4090")[1].link,
            )
            try:
                for _ in range(40):
                    began = time.process_time()
                    split = memory.choose_split(load)
                    took_ms.append(1e3 * (time.process_time() - began))
            except ConfigError:
                continue
            splits.append((gb, split))
        fastest = min(split.seconds for _, split in splits)
        rows += [
            (
                pair,
                f"{gb:g}",
                split.prefill_batch,
                split.decode_batch,
                f"{split.verifier_bytes / 1e9:.2f}",
                f"{split.generator_bytes / 1e9:.2f}",
                "yes" if split.offload else "",
                f"{fastest / split.seconds:.2f}",
            )
            for gb, split in splits
        ]
    head = ("pair", "KV, GB", "B_pre", "B_dec", "verifier, GB", "generator, GB", "offload", "rate")
    second = format_table(head, rows, "The split of a level of 256 paths")
    took_ms = sorted(took_ms)
    search_ms = [round(took_ms[len(took_ms) * percent // 100], 3) for percent in (50, 95)]
    return [first, second], {"gb_for_80_percent": needs, "split_search_ms_median_p95": search_ms}


# ---------------------------------------------------------------- the tables

Arms = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Arm -> problem -> figures. An arm may have fewer problems than others."""


def compare(
    ours: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], name: str
) -> str:
    """A figure over that of the base on the same problem, with its interval."""
    ratios = [run[name] / base[row][name] for row, run in ours.items() if row in base]
    if not ratios:
        return "–"
    return "{:.2f} ({:.2f}–{:.2f})".format(mean(ratios), *interval(ratios))


def average(runs: Mapping[int, Mapping[str, Any]], *names: str) -> float:
    found: list[float] = []
    for run in runs.values():
        value: Any = run
        for name in names:
            value = value[name]
        found.append(value)
    return mean(found)


def count_same(ours: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]]) -> str:
    same = [run["tree"] == base[row]["tree"] for row, run in ours.items() if row in base]
    return f"{sum(same)} of {len(same)}"


def compare_with_exact(name: str, arms: Arms) -> tuple[str, str]:
    """Tokens a second of an arm with R over the same drafts without R: all, and the new ones."""
    if "R =" not in name:
        return "–", "–"
    exact = arms[name.partition(",")[0]]
    new = {
        row: {"tokens_per_s": count_new_tokens(run, exact[row]) / run["seconds"]}
        for row, run in arms[name].items()
        if row in exact
    }
    return compare(arms[name], exact, "tokens_per_s"), compare(new, exact, "tokens_per_s")


def tabulate(study: str, cells: Mapping[Cell, Arms]) -> str:
    """A table of the cells of one study."""
    rows: list[tuple[object, ...]] = []
    head: tuple[str, ...] = ()
    for cell, runs in cells.items():
        if study == "searches":
            head = ("search", "n", "problems", "over whole paths", "over a prefix cache")
            head += ("same trees",)
            ours, whole, cached = runs["P+M+S"], runs["whole paths"], runs["prefix cache"]
            gains = compare(ours, whole, "goodput"), compare(ours, cached, "goodput")
            rows.append((cell.strategy, cell.n, len(ours), *gains, count_same(ours, whole)))
        elif study == "speculation":
            head = ("n", "overheads", "problems", "drafts", "goodput over none")
            head += ("tokens of a tree a second over none", "over exact drafts", "new ones alone")
            head += (
                "tokens a path",
                "steps with a draft",
                "drawn for one kept",
                "sequences, first and second half of a level",
            )
            head += ("share of peak, the same", "verifier's", "same trees")
            rows += [
                (
                    cell.n,
                    cell.overheads,
                    len(arm),
                    name,
                    compare(arm, runs["none"], "goodput"),
                    compare(arm, runs["none"], "tokens_per_s"),
                    *compare_with_exact(name, runs),
                    round(average(arm, "path_tokens")),
                    f"{average(arm, 'kept_steps'):.0%}",
                    f"{average(arm, 'drawn_tokens') / (average(arm, 'kept_tokens') or 1):.1f}",
                    " → ".join(
                        f"{average(arm, f'{part} half', 'sequences'):.1f}"
                        for part in ("first", "second")
                    ),
                    " → ".join(
                        f"{average(arm, f'{part} half', 'utilization'):.1%}"
                        for part in ("first", "second")
                    ),
                    f"{average(arm, 'verifier', 'utilization'):.0%}",
                    count_same(arm, runs["none"]),
                )
                for name, arm in runs.items()
                if arm
            ]
        elif study == "memory":
            head = ("n", "KV, GB", "problems", "tokens a path", "arm", "goodput over arrival order")
            head += ("over random order", "over order+split")
            head += ("blocks reused", "preemptions", "moves", "same trees")
            rows += [
                (
                    cell.n,
                    cell.gb,
                    len(arm),
                    round(average(arm, "path_tokens")),
                    name,
                    *(
                        compare(arm, runs[base], "goodput")
                        for base in ("arrival", "random", "order+split")
                    ),
                    f"{average(arm, 'reuse'):.0%}",
                    f"{average(arm, 'preemptions'):.0f}",
                    f"{average(arm, 'moves'):.0f}",
                    count_same(arm, runs["arrival"]),
                )
                for name, arm in runs.items()
                if arm
            ]
        else:
            head = (f"order, n = {cell.n}", *(f"MB of {k} in four paths" for k in (1, 2, 3, 4)))
            each = [run["orders"] for run in runs["any"].values()]
            for name in each[0]:
                values = [[orders[name][k] for orders in each] for k in range(4)]
                ends = ("{:.0f} ({:.0f}–{:.0f})".format(mean(v), *interval(v)) for v in values)
                rows.append((name, *ends))
    return format_table(head, rows, f"{study} (simulated)")


def read_runs(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(map(json.loads, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    studies = (*ARMS, "phases")
    parser.add_argument("--only", nargs="+", choices=studies, default=list(studies))
    parser.add_argument("--out", type=Path, default=OUTPUT / "paper_figures.jsonl")
    parser.add_argument("--n", type=int, nargs="+", help="only these n")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after these")
    args = parse_arguments(parser)
    cells, out, end = list(list_cells()), args.out, time.monotonic() + 60 * args.minutes
    if is_smoke():
        small = (cell for cell in cells if cell.overheads == "typical" and cell.gb in (None, 0.2))
        cells = list(dict.fromkeys(replace(cell, n=4, problems=1) for cell in small))
    out.parent.mkdir(parents=True, exist_ok=True)
    known, figures, tables = read_runs(out), dict[str, Any](), list[str]()
    for study in (name for name in ARMS if name in args.only):
        found: dict[Cell, dict[str, dict[int, dict[str, Any]]]] = {}
        for cell in cells:
            if cell.study != study or (args.n and cell.n not in args.n):
                continue
            for place, row in enumerate(cell.list_rows()):
                for name in ARMS[study]:
                    key = repr((replace(cell, problems=0), name, row))
                    if key not in known and place < cell.problems and time.monotonic() < end:
                        known[key] = run_case(cell, name, row)
                        with out.open("a", encoding="utf-8") as lines:
                            lines.write(json.dumps([key, known[key]]) + "\n")
                    if key in known:
                        tokens_per_s = known[key]["tokens"] / known[key]["seconds"]
                        run = {**known[key], "tokens_per_s": tokens_per_s}
                        found.setdefault(cell, {name: {} for name in ARMS[study]})[name][row] = run
        if found:
            tables.append(tabulate(study, found))
            figures[study] = {
                repr(cell): {
                    name: {row: round(run["goodput"], 3) for row, run in arm.items()}
                    for name, arm in runs.items()
                }
                for cell, runs in found.items()
            }
    if "phases" in args.only:
        more, figures["phases"] = tabulate_phases()
        tables += more
    print("\n\n".join(tables))
    report(simulated=True, pair=PAIR, goodput=figures)


if __name__ == "__main__":
    main()
