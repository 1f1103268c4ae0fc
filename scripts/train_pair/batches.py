"""Token rows and their labels, grouped by length into padded batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.checker import check_steps
from scripts.train_pair.faults import make_chain
from scripts.train_pair.problems import Difficulty, Problem, Spec, make_problem, solve
from scripts.train_pair.tokenizer import IM_END, STEP, chat_prompt

WIDTHS = (128, 192, 256, 320, 384, 512)
IGNORE = -100


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence. All lists have one entry a token.

    `target`: whether a language-model loss may ask for this token. `right`: 1 or 0 for "nothing up
    to here is wrong", IGNORE on the prompt. `step`: the same at the separators alone.
    """

    ids: list[int]
    target: list[bool]
    right: list[int]
    step: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows, all (batch, width); `next` holds the language-model targets."""

    ids: Tensor
    next: Tensor
    right: Tensor
    step: Tensor


class Encoder:
    """Turns problems and chains into rows; steps are tokenized one by one and the ids joined."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.end, self.separator = tokenizer.convert_tokens_to_ids([IM_END, STEP])
        self.blank = self.backend.encode("\n\n", add_special_tokens=False).ids[0]

    def prompt(self, problem: str) -> list[int]:
        """Ids of the chat prefix."""
        return list(self.backend.encode(chat_prompt(problem), add_special_tokens=False).ids)

    def solution_row(self, text: str, steps: Sequence[str]) -> Row:
        """A right solution as the generator should write it."""
        prompt = self.prompt(text)
        answer: list[int] = []
        for encoding in self.backend.encode_batch(list(steps), add_special_tokens=False):
            answer += [*encoding.ids, self.blank]
        answer[-1] = self.end
        size = len(prompt) + len(answer)
        target = [False] * len(prompt) + [True] * len(answer)
        return Row(prompt + answer, target, [IGNORE] * size, [IGNORE] * size)

    def labelled_row(self, text: str, spec: Spec, steps: Sequence[str]) -> Row:
        """A chain as the verifier reads it, with the checker's labels."""
        ids = self.prompt(text)
        target, right, step = [False] * len(ids), [IGNORE] * len(ids), [IGNORE] * len(ids)
        so_far = 1
        encodings = self.backend.encode_batch(list(steps), add_special_tokens=False)
        for encoding, check in zip(encodings, check_steps(spec, steps), strict=True):
            limit = check.deviation
            flags = [int(limit is None or end <= limit) for _, end in encoding.offsets]
            ids += [*encoding.ids, self.separator]
            right += [flag * so_far for flag in (*flags, int(check.right))]
            so_far = int(check.so_far)
            target += [*map(bool, flags), check.right]
            step += [IGNORE] * len(flags) + [int(check.so_far)]
        return Row(ids, target, right, step)


def collate(rows: Sequence[Row], width: int) -> Batch:
    """Pad rows to `width`; the language-model target at a position is the next token, where it may
    be asked.
    """
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    following, right, step = (
        torch.full((len(rows), width), IGNORE, dtype=torch.long) for _ in range(3)
    )
    for index, row in enumerate(rows):
        size = len(row.ids)
        ids[index, :size] = torch.tensor(row.ids)
        wanted = [
            token if ask else IGNORE for token, ask in zip(row.ids[1:], row.target[1:], strict=True)
        ]
        following[index, : size - 1] = torch.tensor(wanted)
        right[index, :size] = torch.tensor(row.right)
        step[index, :size] = torch.tensor(row.step)
    return Batch(ids, following, right, step)


def batched(
    make_row: Callable[[int], Row], first: int, tokens: int, rng: random.Random
) -> Iterator[Batch]:
    """Endless batches of about `tokens` tokens (padding included); rows of like length share a
    batch.

    A batch leaves as soon as its length bucket is full, so the mix of lengths stays that of the
    data.
    """
    buckets: dict[int, list[Row]] = {width: [] for width in WIDTHS}
    index = first
    while True:
        row = make_row(index)
        index += 1
        width = next((width for width in WIDTHS if len(row.ids) <= width), None)
        if width is None:
            continue
        buckets[width].append(row)
        if len(buckets[width]) * width >= tokens - width + 1:
            rows, buckets[width] = buckets[width], []
            rng.shuffle(rows)
            yield collate(rows, width)


def solutions(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """Right solutions of the training problems from `seed` on."""

    def make(index: int) -> Row:
        problem: Problem = make_problem(index, difficulty)
        return encoder.solution_row(
            problem.text, solve(problem.spec, random.Random(f"{seed}-{index}"))
        )

    return make


def fault_chains(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """Synthetic chains, three to a problem: mostly faulty ones, so that right and wrong share a
    problem.
    """

    def make(index: int) -> Row:
        problem = make_problem(index // 3, difficulty)
        rng = random.Random(f"{seed}-{index}")
        rate = 0.0 if rng.random() < 0.25 else rng.choice((0.08, 0.15, 0.25))
        return encoder.labelled_row(problem.text, problem.spec, make_chain(rng, problem.spec, rate))

    return make
