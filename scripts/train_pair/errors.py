"""Kinds of mistakes: classify the first wrong step of a chain."""

import random
import re
from collections import Counter
from collections.abc import Iterable

from scripts.train_pair.checker import check_step, split_steps
from scripts.train_pair.families import FAMILIES
from scripts.train_pair.families.base import Spec, State, find_carry
from scripts.train_pair.problems import (
    Problem,
    create_state,
    is_complete,
    read_step,
    render_move,
    render_step,
)

MISCONCEPTIONS = {
    "story": "word misread or day forgotten",
    "diary": "word misread or day forgotten",
    "variables": "value of the line above taken",
    "lookups": "value of the line above taken",
    "expression": "sign of a negative number overlooked",
}
_KEY = re.compile(r"(?:Day|Line) \d+")
_SUM = re.compile(r"(\d+)([-+])(\d+)(?:=|:)")


class _Always(random.Random):
    """A random source for which every chance event happens."""

    def random(self) -> float:
        return 0.0


def find_first_fault(problem: Problem, chain: str) -> tuple[str, str] | None:
    """Return the kind and the text of the first wrong step, or None if every step is right."""
    spec, state = problem.spec, create_state(problem.spec)
    steps = split_steps(chain)
    for text in steps:
        if check_step(spec, state, text) is not None:
            return name_fault(spec, state, text), text
        state = read_step(spec, state, text)
    return None if steps and "\\boxed" in steps[-1] else ("no answer", "")


def name_fault(spec: Spec, state: State, text: str) -> str:
    """Name the kind of mistake in the wrong step `text`."""
    if is_complete(spec, state):
        return "answer or end"
    if text == FAMILIES[spec.family].render_mistake(_Always(), spec, state):
        return MISCONCEPTIONS[spec.family]
    if text.startswith("Check:"):
        return "check"
    if "\\boxed" in text:
        return "answered too early"
    right = render_step(spec, state) or ""
    if _KEY.findall(text)[:1] != _KEY.findall(right)[:1]:
        return "skipped or repeated"
    sums = _SUM.findall(right)
    if sums:
        a, op, b = sums[0]
        off = find_carry(int(a), op, int(b))
        if off and text == render_move(spec, state, slip=off):
            return "carry or borrow forgotten"
    if _SUM.findall(text)[:1] == sums[:1]:
        return "arithmetic" if spec.family != "expression" else "arithmetic or copy of the rest"
    return "operand, operator or wording"


def count_faults(chains: Iterable[tuple[Problem, str]]) -> list[dict[str, object]]:
    """List the kinds of first mistakes by frequency, with their share and an example each."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for problem, chain in chains:
        if fault := find_first_fault(problem, chain):
            counts[fault[0]] += 1
            examples.setdefault(fault[0], fault[1])
    total = sum(counts.values())
    return [
        {"kind": kind, "share": round(count / total, 3), "example": examples[kind]}
        for kind, count in counts.most_common()
    ]
