"""The parts of the validation of a card: what each asks, its command, and what counts as passed."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.cli.doctor import BAD

BUNDLED = "bundled"
Figures = Mapping[str, Any]
"""The last line of a part's output, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command of the validation."""

    name: str
    question: str
    command: tuple[str, ...]
    find_faults: Callable[[Figures], list[str]] = lambda figures: []
    """What is wrong with the figures of a command that succeeded. An empty list passes."""
    has_figures: bool = True
    """Whether the last line of the output is JSON."""
    needs: str | None = None
    """The part that must have passed before."""
    limit_s: float = 3600.0
    """The part fails if it takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the user asked for."""

    pair: str
    problems: Path
    output: Path
    rehearse: bool


def list_parts(plan: Plan) -> tuple[Part, ...]:
    """List the parts in their order: first what everything else leans on."""
    small = plan.rehearse
    kv_mib = "1024" if plan.pair == BUNDLED else "4096"
    bench = (*_python("flashedge"), "bench", "flashtts")
    return (
        Part(
            name="doctor",
            question="Does the set-up work?",
            command=(*_python("flashedge"), "doctor", "--json"),
            find_faults=find_failed_checks,
            limit_s=600,
        ),
        Part(
            name="first light",
            question="How fast are a start, a decode step and a search, beside unmodified vLLM?",
            command=(
                *(*_python("scripts.card.first_light"), "--pair", plan.pair),
                *("--problems", str(plan.problems), "--output", str(plan.output / "first-light")),
                *(("--rehearse",) if small else ()),
            ),
        ),
        Part(
            name="profile",
            question="How fast is the device, and do the cost curves fit?",
            command=(
                *_python("flashedge"),
                *("profile", "--pair", plan.pair, "--plot", str(plan.output / "roofline.svg")),
                *(("--quick",) if small else ()),
            ),
            has_figures=False,
        ),
        Part(
            name="self-test",
            question="Are the kernels batch-invariant?",
            command=(*_python("scripts.card.invariance"), "--pair", plan.pair),
            find_faults=lambda figures: find_no_verdict(figures["self_test"] or {}),
        ),
        Part(
            name="determinism",
            question="Do deterministic requests give the same bits, and what does that cost beside"
            " batch-invariant kernels?",
            command=(
                *(*_python("scripts.card.determinism"), "--pair", plan.pair),
                *("--output", str(plan.output / "determinism"), *(("--smoke",) if small else ())),
            ),
            find_faults=find_other_bits,
        ),
        Part(
            name="engine tests",
            question="Do the tests with real engines pass?",
            command=(
                *_python("pytest"),
                *("-q", "-p", "no:cacheprovider", "tests/engine", "-m", "engine or gpu"),
                *(("-k", "bundled_pair") if small else ()),
            ),
            has_figures=False,
            limit_s=7200,
        ),
        Part(
            name="exactness",
            question="Do all optimizations together build the stock loop's trees?",
            command=(
                *_python("scripts.bench.flashtts.exactness"),
                *("--pair", plan.pair, "--file", str(plan.problems), "--mib", kv_mib),
                *("--problems", "2" if small else "20"),
                *(("--n", "4", "--strategies", "beam") if small else ()),
            ),
            find_faults=find_unequal_cases,
            limit_s=7200,
        ),
        Part(
            name="ladder",
            question="What does each optimization gain over the stock loop?",
            command=(
                *(*bench, "--problems", str(plan.problems), "--pair", plan.pair),
                *("--limit", "1" if small else "20", "--n", "4" if small else "8,64"),
                *("--rounds", "1" if small else "2", "--output", str(plan.output / "ladder")),
                "--json",
            ),
            find_faults=find_unequal_rungs,
            limit_s=6 * 3600,
        ),
        Part(
            name="memory",
            question="Does memory move between the engines and back, with the same tokens?",
            command=(
                *_python("scripts.bench.flashtts.memory"),
                *("--pair", plan.pair, "--mib", "64" if small else kv_mib),
            ),
            find_faults=find_still_memory,
        ),
        Part(
            name="faults",
            question="Is every run finished when an engine hangs, is killed, or is out of memory?",
            command=(
                *_python("scripts.bench.foundation.faults"),
                *("--times", "2" if small else "100"),
                *(() if small else ("--hang-s", "20")),
            ),
            find_faults=find_harm,
            limit_s=12 * 3600,
        ),
    )


def _python(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


# ---------------------------------------------------------------- what counts as passed


def find_failed_checks(figures: Figures) -> list[str]:
    return [f"{c['name']}: {c['detail']}" for c in figures["value"] if c["verdict"] == BAD]


def find_no_verdict(self_test: Figures) -> list[str]:
    """Why the self-test says nothing of the kernels."""
    if self_test.get("batch_invariant") is not None:
        return []
    return [f"no verdict: {self_test.get('failure', 'it found nothing')}"]


def find_other_bits(figures: Figures) -> list[str]:
    """Name what a deterministic request drew otherwise, and kernels for which there is no shape."""
    cases = figures["cases"]
    faults = [
        f"{case['logprobs_differ']} of {case['requests']} deterministic requests differ"
        for case in cases
        if case["deterministic"] and case["logprobs_differ"]
    ]
    if not any(case["deterministic"] for case in cases):
        faults.append("the self-test found no shape for deterministic requests")
    return faults


def find_unequal_cases(figures: Figures) -> list[str]:
    """Name the cases in which no memory moved, and those whose trees differ by more than kernels
    that are not bit-invariant explain."""
    longest = figures["invariant_tokens"]
    still = [
        f"{name}: {what}, by {figures['kv_memory']}"
        for name, case in figures["cases"].items()
        for count, what in (
            ("split_moves", "the KV split never moved"),
            ("offloads", "no KV was offloaded"),
        )
        if not case[count]
    ]
    return still + [
        f"{name}: {case['same']} of {case['runs']} trees are equal"
        for name, case in figures["cases"].items()
        if case["chose_same"] != case["runs"] or 0 < case["differ_from_tokens"] <= longest
    ]


def find_unequal_rungs(figures: Figures) -> list[str]:
    return [
        f"{row['rung']}, n = {row['n']}: {row['same_trees']:.0%} of the trees are equal"
        for row in figures["rungs"]
        if row["same_trees"] not in (None, 1)
    ]


def find_still_memory(figures: Figures) -> list[str]:
    """Name engines that gave no memory back or took none, and count tokens that changed. By its
    share and by offloading, since an engine alone can offload."""
    found = [
        f"the {engine} {verb} no memory {by}: {figures['kv_memory'][engine]}"
        for key, by in (("moved_mib", "by its share"), ("offloaded_mib", "by offloading"))
        for engine, moved in figures[key].items()
        for name, verb in (("unmapped", "gave back"), ("mapped", "took"))
        if not moved[name] > 0
    ]
    changed = figures["tokens_identical"].count(False)
    return [*found, *([f"the tokens changed {changed} times"] if changed else [])]


def find_harm(figures: Figures) -> list[str]:
    """What faults did to runs, or to the daemon."""
    found = []
    for name, tally in figures["faults"].items():
        harm = ("lost", "other_trees", "leaked_blocks")
        found += [f"{name}: {tally[key]} {key}" for key in harm if tally[key]]
        if not tally["times"]:
            found.append(f"{name}: it never happened")
    if not figures["daemon"]["alive"]:
        found.append("the daemon died")
    return found
