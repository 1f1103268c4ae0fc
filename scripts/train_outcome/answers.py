"""Labelled answers: what the bundled generator writes to training problems, right and wrong."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from flashedge.cli.progress import show_bar
from scripts.train_pair.batches import Encoder
from scripts.train_pair.checker import is_correct
from scripts.train_pair.decode import sample_chains
from scripts.train_pair.export import load_generator
from scripts.train_pair.problems import STANDARD, make_problem

FIRST_SEED = 800_000_000
GROUP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAnswers:
    """The answers to one problem."""

    problem: str
    answers: tuple[str, ...]
    """(copies,) whole texts."""

    right: tuple[bool, ...]
    """(copies,) by the exact checker."""


def sample_answers(
    generator: Path, count: int, copies: int = 8, temperature: float = 0.8, seed: int = 0
) -> list[LabelledAnswers]:
    """Sample `copies` answers to each of `count` training problems.

    generator: the bundled generator's folder. The problems have the held-out problems' difficulty
    and other seeds.
    """
    model = load_generator(generator)
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(str(generator)))
    found: list[LabelledAnswers] = []
    with show_bar("answers", count, unit="problems") as advance:
        for first in range(0, count, GROUP):
            problems = [
                make_problem(FIRST_SEED + seed * 1_000_000 + index, STANDARD)
                for index in range(first, min(count, first + GROUP))
            ]
            texts = sample_chains(
                model, encoder, [p.text for p in problems], copies, temperature, seed + first
            )
            found += [
                LabelledAnswers(
                    problem=problem.text,
                    answers=tuple(chains),
                    right=tuple(is_correct(problem, chain) for chain in chains),
                )
                for problem, chains in zip(problems, texts, strict=True)
            ]
            advance(len(problems))
    return found
