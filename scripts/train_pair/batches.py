"""Token rows and their labels, grouped by length into padded batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.checker import check_steps
from scripts.train_pair.families.base import Spec
from scripts.train_pair.faults import make_chain
from scripts.train_pair.problems import Difficulty, first_state, make_problem, read_step
from scripts.train_pair.teacher import teach
from scripts.train_pair.tokenizer import IM_END, PROBE, STEP, chat_prompt

WIDTHS = (128, 192, 256, 320, 384, 512)
IGNORE = -100
PROBED = 0.15  # share of lessons that end in a probe
TAUGHT = 0.4  # share of the teacher's own chains among the verifier's


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

    def solution_row(
        self, text: str, steps: Sequence[str], cut: int | None = None, guess: str = ""
    ) -> Row:
        """A solution as the generator should write it.

        With `cut`, only its first so many tokens, and then a probe that is answered with `guess`;
        nobody but who probes writes the probe, so it is not asked for.
        """
        prompt = self.prompt(text)
        answer: list[int] = []
        for encoding in self.backend.encode_batch(list(steps), add_special_tokens=False):
            answer += [*encoding.ids, self.blank]
        answer[-1] = self.end
        asked = [True] * len(answer)
        if cut is not None:
            probe, told, close = (
                part.ids
                for part in self.backend.encode_batch([PROBE, guess, "}"], add_special_tokens=False)
            )
            answer = [*answer[:cut], *probe, *told, *close, self.end]
            asked = [True] * cut + [False] * len(probe) + [True] * (len(answer) - cut - len(probe))
        size = len(prompt) + len(answer)
        target = [False] * len(prompt) + asked
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


def lessons(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """The teacher's solutions of the training problems from `seed` on; some are cut anywhere, even
    within a step, and probed for the answer so far: the last value stated by a whole step.
    """

    def make(index: int) -> Row:
        problem = make_problem(index, difficulty)
        rng = random.Random(f"{seed}-{index}")
        steps = teach(rng, problem.spec)
        if rng.random() >= PROBED:
            return encoder.solution_row(problem.text, steps)
        state, whole = first_state(problem.spec), rng.randrange(len(steps))
        for text in steps[:whole]:
            state = read_step(problem.spec, state, text)
        sizes = [len(encoder.backend.encode(text).ids) + 1 for text in steps[: whole + 1]]
        cut = sum(sizes[:-1]) + rng.randrange(sizes[-1] - 1) * (rng.random() < 0.8)
        guess = str(0 if state.value is None else state.value)
        return encoder.solution_row(problem.text, steps, cut, guess)

    return make


def fault_chains(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """Chains of the teacher and chains with synthetic faults, three to a problem: mostly faulty
    ones, so that right and wrong share a problem.
    """

    def make(index: int) -> Row:
        problem = make_problem(index // 3, difficulty)
        rng = random.Random(f"{seed}-{index}")
        kind = rng.random()
        if kind < TAUGHT:
            steps = teach(rng, problem.spec)
        else:
            rate = 0.0 if kind < TAUGHT + 0.2 else rng.choice((0.08, 0.15, 0.25))
            steps = make_chain(rng, problem.spec, rate)
        return encoder.labelled_row(problem.text, problem.spec, steps)

    return make
