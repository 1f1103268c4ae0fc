"""The exact checker's part of the report, from the chains that `flashedge models eval` kept.

It says how often the verifier is right step by step, and which errors the generator makes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.lab.evaluation.measure import ProblemRecord
from scripts.lab.statistics import auc, bootstrap, calibration, mean
from scripts.train_pair.checker import check_steps, split_steps
from scripts.train_pair.errors import count_faults
from scripts.train_pair.problems import Problem

CHAINS = 16  # chains of each problem that are judged; more do not change the figures

ScoredStep = tuple[float, bool]
"""The verifier's probability of a step, and whether nothing is wrong so far."""


def score_steps(problem: Problem, record: ProblemRecord) -> list[ScoredStep]:
    """List every scored step of the problem's first chains."""
    found: list[ScoredStep] = []
    for chain in record.chains[:CHAINS]:
        checks = check_steps(problem.spec, split_steps(chain.text))
        found += [(score, check.so_far) for score, check in zip(chain.scores, checks, strict=False)]
    return found


def judge(problems: Mapping[str, Problem], records: Sequence[ProblemRecord]) -> dict[str, Any]:
    """Compare the verifier's scores with the exact checker.

    problems: by the id that the records use. The reliability table has one row per tenth of the
    score. Intervals are bootstrapped over problems.
    """
    scored = [score_steps(problems[record.id], record) for record in records]
    error, table = calibration(*split_columns(scored))
    chains = [
        (problems[record.id], chain.text) for record in records for chain in record.chains[:CHAINS]
    ]
    checks = [c for p, text in chains for c in check_steps(p.spec, split_steps(text))]
    return {
        "problems": len(records),
        "chains": len(chains),
        "steps right given what was stated": round(mean([float(c.right) for c in checks]), 4),
        "step AUC (pooled, no gate)": round(compute_step_auc(scored), 4),
        "step AUC 95 %": round_bounds(bootstrap(scored, compute_step_auc)),
        "expected calibration error (steps)": round(error, 4),
        "expected calibration error 95 %": round_bounds(
            bootstrap(scored, lambda some: calibration(*split_columns(some))[0])
        ),
        "reliability": table,
        "commonest errors": count_faults(chains),
    }


def split_columns(scored: Sequence[Sequence[ScoredStep]]) -> tuple[list[float], list[bool]]:
    """Return the scores and the labels of the steps of all problems."""
    flat = [pair for problem in scored for pair in problem]
    return [score for score, _ in flat], [right for _, right in flat]


def compute_step_auc(scored: Sequence[Sequence[ScoredStep]]) -> float:
    """Compute the AUC of right steps against wrong ones, over all problems."""
    scores, labels = split_columns(scored)
    pairs = list(zip(scores, labels, strict=True))
    return auc([s for s, right in pairs if right], [s for s, right in pairs if not right])


def round_bounds(bounds: tuple[float, float]) -> list[float]:
    """Round the low and the high end of an interval."""
    return [round(bound, 4) for bound in bounds]
