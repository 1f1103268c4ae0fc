"""What only the exact checker tells of the chains that `flashedge models eval` kept: how often the
verifier is right step by step, and what the generator's errors are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.evaluation.records import ProblemRecord
from flashedge.statistics import auc, calibration, mean, resampled
from scripts.train_pair.checker import check_steps, split_steps
from scripts.train_pair.errors import count_faults
from scripts.train_pair.problems import Problem

CHAINS = 16  # of each problem: more of them tell the same

Said = tuple[float, bool]  # of a step: the verifier's probability, whether nothing is wrong so far


def said_of(problem: Problem, record: ProblemRecord) -> list[Said]:
    """Every scored step of the problem's first chains."""
    found: list[Said] = []
    for chain in record.chains[:CHAINS]:
        checks = check_steps(problem.spec, split_steps(chain.text))
        found += [(score, check.so_far) for score, check in zip(chain.scores, checks, strict=False)]
    return found


def judge(problems: Mapping[str, Problem], records: Sequence[ProblemRecord]) -> dict[str, Any]:
    """problems: by the id that the records name. The reliability table is of tenths of the score;
    intervals are bootstrap ones over problems.
    """
    said = [said_of(problems[record.id], record) for record in records]
    error, table = calibration(*columns(said))
    chains = [
        (problems[record.id], chain.text) for record in records for chain in record.chains[:CHAINS]
    ]
    checks = [c for p, text in chains for c in check_steps(p.spec, split_steps(text))]
    return {
        "problems": len(records),
        "chains": len(chains),
        "steps right given what was stated": round(mean([float(c.right) for c in checks]), 4),
        "step AUC (pooled, no gate)": round(step_auc(said), 4),
        "step AUC 95 %": rounded(resampled(said, step_auc)),
        "expected calibration error (steps)": round(error, 4),
        "expected calibration error 95 %": rounded(
            resampled(said, lambda some: calibration(*columns(some))[0])
        ),
        "reliability": table,
        "commonest errors": count_faults(chains),
    }


def columns(said: Sequence[Sequence[Said]]) -> tuple[list[float], list[bool]]:
    """Scores and labels of the steps of all problems."""
    flat = [pair for problem in said for pair in problem]
    return [score for score, _ in flat], [right for _, right in flat]


def step_auc(said: Sequence[Sequence[Said]]) -> float:
    """Of right steps against wrong ones, over all problems."""
    scores, labels = columns(said)
    pairs = list(zip(scores, labels, strict=True))
    return auc([s for s, right in pairs if right], [s for s, right in pairs if not right])


def rounded(bounds: tuple[float, float]) -> list[float]:
    """Low and high."""
    return [round(bound, 4) for bound in bounds]
