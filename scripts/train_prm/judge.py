"""Scores the solutions of problems that were not trained on, and says what the scores are worth."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.files.journal import Journal
from scripts.lab.evaluation.figures import Figure, estimate_mean, grade_choices, measure_verifier
from scripts.lab.evaluation.measure import Chain, ProblemRecord
from scripts.lab.statistics import auc, calibration
from scripts.train_prm.model import RewardModel
from scripts.train_prm.samples import Solutions, encode_rows

GROUP = 8
"""Problems that are scored together."""
PLACES = {"first": 0.0, "middle": 0.5, "last": 1.0}
"""Where in a solution a score is read, from its first step to its last."""


def score_solutions(
    model: RewardModel,
    form: QwenPrm,
    problems: Sequence[Solutions],
    most_tokens: int,
    journal: Path,
    until: float,
) -> list[ProblemRecord] | None:
    """Score all solutions, or go on with that. None if time is up first. A solution whose
    first step does not fit counts 0, as in a search."""
    with Journal(journal, None, ProblemRecord.from_json, key=lambda r: r.index) as kept:
        for first in range(len(kept.records), len(problems), GROUP):
            if time.monotonic() >= until:
                return None
            some = problems[first : first + GROUP]
            rows = [encode_rows(form, one, most_tokens) for one in some]
            with torch.inference_mode():
                odds = model.compute_log_odds([row for of in rows for row in of])
            left = iter(odds)
            for at, one in enumerate(some):
                chains = tuple(
                    Chain(
                        text=text,
                        answer=answer,
                        right=right,
                        scores=tuple(next(left).sigmoid().tolist()) or (0.0,),
                    )
                    for text, answer, right in zip(one.texts, one.answers, one.right, strict=True)
                )
                kept.append(
                    ProblemRecord(
                        index=first + at,
                        id=one.problem,
                        family=None,
                        steps=None,
                        greedy=chains[0],
                        chains=chains,
                        beams={},
                    )
                )
        return list(kept.records.values())


def measure_by_place(
    records: Sequence[ProblemRecord], *, is_answered: bool = True
) -> dict[str, Figure]:
    """The AUC within a problem of the scores at each of PLACES: how probably a right solution has a
    higher score there than a wrong one of the same problem, on average over the problems.

    is_answered: of solutions with an answer. The others, most of which were cut off, can't be
    chosen, and are easily told from the right ones.
    """
    found = {}
    for name, place in PLACES.items():
        values = []
        for record in records:
            scores = [
                (c.scores[round(place * (len(c.scores) - 1))], c.right)
                for c in record.chains
                if c.answer is not None or not is_answered
            ]
            right, wrong = ([s for s, is_right in scores if is_right is k] for k in (True, False))
            if right and wrong:
                values.append(auc(right, wrong))
        found[name] = estimate_mean(values)
    return found


def build_report(records: Sequence[ProblemRecord]) -> dict[str, Any]:
    """All figures as JSON values, with 95 % bootstrap intervals over the problems."""
    n = min(len(record.chains) for record in records)
    table = grade_choices(records, (n,))
    majority = table[f"majority@{n}"]
    ways = {
        "one sample": "sample",
        "majority": f"majority@{n}",
        "weighted vote": f"weighted vote@{n} (last)",
        "best of n": f"best-of-{n} (last)",
        "some sample right": f"pass@{n}",
    }
    chains = [chain for record in records for chain in record.chains]
    last = [c.scores[-1] for c in chains], [c.right for c in chains]
    return {
        "problems": len(records),
        "n": n,
        "auc_within": measure_by_place(records),
        "auc_within_all": measure_by_place(records, is_answered=False),
        "verifier": measure_verifier(records),
        "accuracy": {name: estimate_mean(table[way]) for name, way in ways.items()},
        "over_majority": {
            name: estimate_mean([a - b for a, b in zip(table[ways[name]], majority, strict=True)])
            for name in ("weighted vote", "best of n")
        },
        "reliability": dict(zip(("error", "rows"), calibration(*last), strict=True)),
    }
