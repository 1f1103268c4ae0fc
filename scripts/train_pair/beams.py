"""Step-wise beam search over many problems at once, with the verifier or with the exact checker as
judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scripts.train_pair.batches import Encoder
from scripts.train_pair.checker import check_steps, split_steps
from scripts.train_pair.decode import extend_paths, open_paths, pad
from scripts.train_pair.model import Cache, Generator, Verifier
from scripts.train_pair.problems import Problem


@dataclass(slots=True)
class Beam:
    """A path of one problem: its row in the caches while it grows, its text and scores."""

    problem: int
    row: int
    text: str = ""
    score: float = 0.0
    finished: bool = False


@torch.no_grad()
def open_verifier(model: Verifier, prompts: Sequence[Sequence[int]]) -> Cache:
    """Prefill the prompts."""
    ids, counts = pad(prompts, model.model.embed_tokens.weight.device)
    cache = model.model.new_cache(len(prompts), ids.shape[1] + 1)
    model.model.extend(ids, counts, cache)
    return cache


@torch.no_grad()
def score_steps(model: Verifier, cache: Cache, steps: Sequence[Sequence[int]]) -> list[float]:
    """Append one step to every row and score it at its end."""
    ids, counts = pad(steps, model.model.embed_tokens.weight.device)
    states = model.model.extend(ids, counts, cache)
    last = states[torch.arange(len(steps), device=ids.device), counts - 1]
    return model.score(last).float().softmax(-1)[:, 1].tolist()


def beam_search(
    generator: Generator,
    verifier: Verifier | None,
    encoder: Encoder,
    problems: Sequence[Problem],
    n: int,
    branching: int,
    temperature: float,
    seed: int,
    max_steps: int = 24,
    step_limit: int = 192,
    limit: int = 640,
) -> list[str]:
    """The best path of every problem as text; without a verifier the exact checker judges (the
    ceiling).

    Every level: each live path writes one step, the step is scored, the best n/branching paths of a
    problem stay (finished ones keep their score and place) and each live one of them is forked.
    """
    device = generator.model.embed_tokens.weight.device
    noise = torch.Generator(device=device).manual_seed(seed)
    prompts = [encoder.prompt(problem.text) for problem in problems]
    paths = open_paths(generator, prompts)
    judged = open_verifier(verifier, prompts) if verifier else None
    rows = [index for index in range(len(problems)) for _ in range(n)]
    beams = [Beam(index, row) for row, index in enumerate(rows)]
    paths = paths.select(rows, step_limit)
    if judged:
        judged = judged.select(torch.tensor(rows, device=device), step_limit)
    stops = frozenset({encoder.blank, encoder.end})
    kept: list[Beam] = []
    for _ in range(max_steps):
        before = [len(ids) for ids in paths.written]
        extend_paths(generator, paths, stops, step_limit, temperature, noise)
        steps = [ids[start:] for ids, start in zip(paths.written, before, strict=True)]
        grown = [beam for beam in beams if not beam.finished]
        for beam in grown:
            beam.text = encoder.backend.decode(paths.written[beam.row], skip_special_tokens=True)
            beam.finished = (
                steps[beam.row][-1] == encoder.end or len(paths.written[beam.row]) >= limit
            )
        if verifier and judged:
            marked = [[*(i for i in ids if i not in stops), encoder.separator] for ids in steps]
            scores = score_steps(verifier, judged, marked)
        else:
            scores = [0.0] * len(steps)
            for beam in grown:
                checks = check_steps(problems[beam.problem].spec, split_steps(beam.text))
                scores[beam.row] = float(bool(checks) and checks[-1].so_far)
        for beam in grown:
            beam.score = scores[beam.row]
        kept = []
        for index in range(len(problems)):
            mine = sorted(
                (beam for beam in beams if beam.problem == index), key=lambda beam: -beam.score
            )
            kept += mine[: max(1, n // branching)]
        beams, rows = [], []
        for beam in kept:
            for _ in range(1 if beam.finished else branching):
                beams.append(Beam(beam.problem, len(rows), beam.text, beam.score, beam.finished))
                if not beam.finished:
                    rows.append(beam.row)
        if not rows:
            break
        paths = paths.select(rows, step_limit)
        if judged:
            judged = judged.select(torch.tensor(rows, device=device), step_limit)
    best = {}
    for beam in sorted(kept, key=lambda beam: (beam.finished, beam.score)):
        best[beam.problem] = beam.text
    return [best[index] for index in range(len(problems))]
