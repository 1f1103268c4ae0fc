"""Chains that the generator samples on training problems: the verifier's on-policy examples."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from flashedge.cli.progress import show_bar
from scripts.train_pair.batches import Encoder, Row
from scripts.train_pair.checker import split_steps
from scripts.train_pair.decode import sample_chains
from scripts.train_pair.model import Generator
from scripts.train_pair.problems import TRAINING, Difficulty, make_problem

FIRST_SEED = 700_000_000
TEMPERATURES = (0.7, 0.9, 1.1)


def write_rollouts(
    model: Generator,
    encoder: Encoder,
    path: Path,
    count: int,
    copies: int = 4,
    seed: int = 0,
    difficulty: Difficulty = TRAINING,
    group: int = 64,
) -> None:
    """Sample `copies` chains for `count` problems and append them to a file.

    An interrupted call is continued where the file ends. group: problems sampled at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(path.read_text().splitlines()) if path.exists() else 0
    with show_bar("rollouts", count, done=done, unit="problems") as advance:
        for first in range(done, count, group):
            seeds = [
                FIRST_SEED + seed * 1_000_000 + index
                for index in range(first, min(count, first + group))
            ]
            problems = [make_problem(number, difficulty) for number in seeds]
            temperature = TEMPERATURES[first // group % len(TEMPERATURES)]
            chains = sample_chains(
                model, encoder, [p.text for p in problems], copies, temperature, seed + first
            )
            with path.open("a") as file:
                for number, texts in zip(seeds, chains, strict=True):
                    file.write(json.dumps({"seed": number, "chains": texts}) + "\n")
            advance(len(seeds))


def read_rollouts(
    encoder: Encoder, path: Path, difficulty: Difficulty = TRAINING
) -> Callable[[int], Row]:
    """Return a function that makes labelled rows of the stored chains, shuffled once."""
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    flat = [(row["seed"], text) for row in stored for text in row["chains"]]
    random.Random(0).shuffle(flat)

    def make(index: int) -> Row:
        seed, text = flat[index % len(flat)]
        problem = make_problem(seed, difficulty)
        return encoder.encode_chain(problem.text, problem.spec, split_steps(text))

    return make
