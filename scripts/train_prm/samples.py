"""Solutions that a generator sampled, whether each is right, and the rows that a model reads.

A row is written as the daemon sends a path to a verifier of the family `qwen_prm`: the steps of
`split_steps`, each encoded by itself, with the step token behind it.
"""

import asyncio
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.answers.extraction import extract_answer
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.errors import ConfigError
from flashedge.search.step_rules import split_steps
from flashedge.types import NodeId, Problem, TokenIds

STEP_TOKENS = ("<extra_0>", "<|fim_pad|>", "<empty_output>")
"""Tokens that a generator of Qwen2.5 or SmolLM2 knows and never writes: one of them ends a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solutions:
    """The solutions of one problem."""

    problem: str
    texts: tuple[str, ...]
    answers: tuple[str | None, ...]
    """Equal answers are spelled alike. None where a text has no box."""
    right: tuple[bool, ...]

    @property
    def is_mixed(self) -> bool:
        return any(self.right) and not all(self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One solution as token ids."""

    ids: TokenIds
    ends: tuple[int, ...]
    """(num_steps,) where the step tokens stand in `ids`."""
    right: bool
    """Whether the solution ends right, which is the label of all of its steps."""


def read_samples(path: Path) -> list[Solutions]:
    """Read JSON lines, or .gz of them, of `problem`, `answer` and `texts`, and check each text's
    answer as the daemon does. Raises ConfigError for a damaged line, and where nothing is to be
    learnt: no text is right, or none is wrong."""
    found = asyncio.run(_check_answers(list(read_lines(path))))
    for kind in (True, False):
        if not any(kind in one.right for one in found):
            told = f"no text in {path} is {'right' if kind else 'wrong'}"
            hint = "a verifier learns from both: check the field `answer`, or sample other problems"
            raise ConfigError(told, hint=hint, param="samples")
    return found


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield `problem`, `answer` and `texts` of each line. Raises ConfigError for a damaged one."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    texts = [str(text) for text in row["texts"]]
                    yield {"problem": row["problem"], "answer": str(row["answer"]), "texts": texts}
                except (ValueError, KeyError, TypeError) as error:
                    told = f"{path}, line {number} is no JSON of problem, answer and texts: {error}"
                    raise ConfigError(told, hint="remove the line", param="samples") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}", param="samples") from error


async def _check_answers(lines: Sequence[dict[str, Any]]) -> list[Solutions]:
    grader, found = MathGrader(), []
    try:
        for line in lines:
            boxes = [line["answer"], *map(extract_answer, line["texts"])]
            spelled = await grader.cluster({NodeId(i): box for i, box in enumerate(boxes)})
            known, *answers = (spelled[NodeId(i)] for i in range(len(boxes)))
            found.append(
                Solutions(
                    problem=line["problem"],
                    texts=tuple(line["texts"]),
                    answers=tuple(answers),
                    right=tuple(answer == known for answer in answers),
                )
            )
    finally:
        await grader.close()
    return found


def find_step_token(generator: Path) -> str:
    """The first of STEP_TOKENS in the vocabulary. Raises ConfigError if there is none."""
    known = (generator / "tokenizer.json").read_text(encoding="utf-8")
    for token in STEP_TOKENS:
        if json.dumps(token) in known:
            return token
    told = f"the tokenizer of {generator} has none of {', '.join(STEP_TOKENS)}"
    hint = "name a token that the generator never writes: --step-token TOKEN"
    raise ConfigError(told, hint=hint, param="step-token")


def encode_rows(form: QwenPrm, solutions: Solutions, most_tokens: int) -> list[Row]:
    """Encode each solution. Steps beyond `most_tokens` are left out, so a row may have none."""
    prompt = form.encode_problem(Problem.from_text(solutions.problem))
    rows = []
    for text, right in zip(solutions.texts, solutions.right, strict=True):
        ids, ends = list(prompt), []
        for index, step in enumerate(split_steps(text)):
            more, upto = form.encode_step(step, index)
            if len(ids) + len(more) > most_tokens:
                break
            ends.append(len(ids) + upto - 1)
            ids += more
        rows.append(Row(ids=tuple(ids[:most_tokens]), ends=tuple(ends), right=right))
    return rows
