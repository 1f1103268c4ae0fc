"""The input of a batch: problems with distinct ids, and their digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from flashedge.errors import ConfigError
from flashedge.files.problems import FileProblem, ProblemId, read_problems


def read_distinct_problems(path: Path) -> tuple[FileProblem, ...]:
    """The problems in the order of the file. Raises ConfigError, also where two share an id."""
    problems = read_problems(path)
    seen = set[ProblemId]()
    for problem in problems:
        if problem.id in seen:
            raise ConfigError(
                f"{path}: two problems have the id {problem.id!r}",
                hint="give each problem an id of its own, or none",
                param="input",
            )
        seen.add(problem.id)
    return problems


def digest_problems(problems: Sequence[FileProblem]) -> str:
    """SHA-256 over ids, texts and answers, in order."""
    fields = [(problem.id, problem.text, problem.answer) for problem in problems]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()
