"""What the pair writes and says on problems it never saw: the record that the table is made of.

Groups of problems are measured one after the other and kept, a line a problem, so that a call that
was cut short goes on, and so that several processes can share the work (`shard`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flashedge.cli.progress import bar
from scripts.train_pair.batches import Encoder
from scripts.train_pair.beams import beam_search
from scripts.train_pair.checker import split_steps
from scripts.train_pair.decode import sample_chains, score_chains
from scripts.train_pair.model import Generator, Verifier
from scripts.train_pair.problems import Problem

ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a pair is measured. sizes: the n's; oracle: the n's that the exact checker judges too."""

    sizes: tuple[int, ...] = (4, 16)
    oracle: tuple[int, ...] = ()
    temperature: float = 0.8
    branching: int = 4
    seed: int = 1
    group: int = 16


@dataclass(frozen=True, slots=True)
class Record:
    """One problem: its greedy chain, its sampled chains with their step scores, the path that each
    beam search chose by `verifier-n` or `oracle-n`.
    """

    seed: int
    greedy: str
    chains: list[str]
    scores: list[list[float]]
    beams: dict[str, str]


def measure(
    generator: Generator,
    verifier: Verifier,
    encoder: Encoder,
    problems: Sequence[Problem],
    path: Path,
    plan: Plan,
    shard: tuple[int, int] = (0, 1),
) -> None:
    """Measure every group of the shard (number, of how many) that `path` does not hold yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {record.seed for record in read_records([path])}
    groups = [problems[at : at + plan.group] for at in range(0, len(problems), plan.group)]
    mine = [group for index, group in enumerate(groups) if index % shard[1] == shard[0]]
    with bar("measuring", sum(map(len, mine)), unit="problems") as advance:
        for group in mine:
            if any(problem.seed not in known for problem in group):
                rows = _measured(generator, verifier, encoder, group, plan)
                text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
                with path.open("a") as file:
                    file.write(text)
            advance(len(group))


def read_records(paths: Sequence[Path]) -> list[Record]:
    """All whole lines of the files that exist, the first of a problem, by seed."""
    found: dict[int, Record] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith("}"):
                record = Record(**json.loads(line))
                found.setdefault(record.seed, record)
    return [found[seed] for seed in sorted(found)]


def _measured(
    generator: Generator,
    verifier: Verifier,
    encoder: Encoder,
    problems: Sequence[Problem],
    plan: Plan,
) -> list[Record]:
    texts = [problem.text for problem in problems]
    seed = plan.seed + problems[0].seed
    greedy = sample_chains(generator, encoder, texts, 1, 0.0, seed)
    chains = sample_chains(generator, encoder, texts, max(plan.sizes), plan.temperature, seed)
    scores = [
        score_chains(verifier, encoder, text, [split_steps(chain) for chain in row])
        for text, row in zip(texts, chains, strict=True)
    ]
    found: dict[str, list[str]] = {}
    judges = [("verifier", verifier, n) for n in plan.sizes]
    for name, judge, n in [*judges, *(("oracle", None, n) for n in plan.oracle)]:
        size, paths = max(1, ROWS_AT_ONCE // n), found.setdefault(f"{name}-{n}", [])
        for at in range(0, len(problems), size):
            part = problems[at : at + size]
            paths += beam_search(
                generator, judge, encoder, part, n, plan.branching, plan.temperature, seed + at
            )
    return [
        Record(
            problem.seed,
            greedy[index][0],
            chains[index],
            scores[index],
            {name: paths[index] for name, paths in found.items()},
        )
        for index, problem in enumerate(problems)
    ]
