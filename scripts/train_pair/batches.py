"""Token rows and their labels, grouped by length into padded batches."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from scripts.train_pair.checker import StepCheck, check_steps
from scripts.train_pair.families.base import Spec
from scripts.train_pair.faults import make_chain
from scripts.train_pair.problems import Difficulty, create_state, make_problem, read_step
from scripts.train_pair.teacher import teach
from scripts.train_pair.tokenizer import IM_END, PROBE, STEP, find_id, format_prompt

WIDTHS = (96, 128, 192, 256, 320, 384, 512, 704)
IGNORE = -100
PROBED = 0.15  # share of lessons that end in a probe
TAUGHT = 0.4  # share of the verifier's training chains that the teacher wrote


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence. All lists have one entry per token."""

    ids: list[int]

    target: list[bool]
    """Whether the language-model loss covers this token."""

    right: list[int]
    """1 if nothing up to here is wrong, else 0. IGNORE on the prompt."""

    step: list[int]
    """The same at the step separators. IGNORE elsewhere."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows. All tensors are (batch, width)."""

    ids: Tensor

    next: Tensor
    """The next token at each position. IGNORE where the language-model loss does not cover it."""

    right: Tensor
    step: Tensor


class Encoder:
    """Turns problems and chains into rows. Steps are tokenized one by one."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.end, self.separator = find_id(tokenizer, IM_END), find_id(tokenizer, STEP)
        self.blank = self.backend.encode("\n\n", add_special_tokens=False).ids[0]

    def encode_prompt(self, problem: str) -> list[int]:
        """Return the ids of the chat prefix."""
        return list(self.backend.encode(format_prompt(problem), add_special_tokens=False).ids)

    def encode_answer(self, steps: Sequence[str]) -> list[int]:
        """Return the ids of an answer: its steps with blank lines between, then the turn's end."""
        answer: list[int] = []
        for encoding in self.backend.encode_batch(list(steps), add_special_tokens=False):
            answer += [*encoding.ids, self.blank]
        answer[-1] = self.end
        return answer

    def encode_solution(
        self, text: str, steps: Sequence[str], cut: int | None = None, guess: str = ""
    ) -> Row:
        """Encode a solution as the generator should write it.

        With `cut`, keep only the first `cut` tokens and add a probe that is answered with `guess`.
        The loss does not cover the probe, because the generator never writes one.
        """
        prompt = self.encode_prompt(text)
        answer = self.encode_answer(steps)
        asked = [True] * len(answer)
        if cut is not None:
            probe, answered, close = (
                part.ids
                for part in self.backend.encode_batch([PROBE, guess, "}"], add_special_tokens=False)
            )
            answer = [*answer[:cut], *probe, *answered, *close, self.end]
            asked = [True] * cut + [False] * len(probe) + [True] * (len(answer) - cut - len(probe))
        size = len(prompt) + len(answer)
        target = [False] * len(prompt) + asked
        return Row(prompt + answer, target, [IGNORE] * size, [IGNORE] * size)

    def encode_chain(self, text: str, spec: Spec, steps: Sequence[str]) -> Row:
        """Encode a chain as the verifier reads it, with the checker's labels."""
        return self.encode_checked(text, steps, check_steps(spec, steps))

    def encode_checked(self, text: str, steps: Sequence[str], checks: Sequence[StepCheck]) -> Row:
        """Encode a chain whose steps are already checked."""
        ids = self.encode_prompt(text)
        target, right, step = [False] * len(ids), [IGNORE] * len(ids), [IGNORE] * len(ids)
        so_far = 1
        encodings = self.backend.encode_batch(list(steps), add_special_tokens=False)
        for encoding, check in zip(encodings, checks, strict=True):
            limit = check.deviation
            flags = [int(limit is None or end <= limit) for _, end in encoding.offsets]
            ids += [*encoding.ids, self.separator]
            right += [flag * so_far for flag in (*flags, int(check.right))]
            so_far = int(check.so_far)
            target += [*map(bool, flags), check.right]
            step += [IGNORE] * len(flags) + [int(check.so_far)]
        return Row(ids, target, right, step)


def collate(rows: Sequence[Row], width: int) -> Batch:
    """Pad rows to `width` and shift the language-model targets by one position."""
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    following, right, step = (
        torch.full((len(rows), width), IGNORE, dtype=torch.long) for _ in range(3)
    )
    for index, row in enumerate(rows):
        size = len(row.ids)
        ids[index, :size] = torch.tensor(row.ids)
        targets = [
            token if ask else IGNORE for token, ask in zip(row.ids[1:], row.target[1:], strict=True)
        ]
        following[index, : size - 1] = torch.tensor(targets)
        right[index, :size] = torch.tensor(row.right)
        step[index, :size] = torch.tensor(row.step)
    return Batch(ids, following, right, step)


def make_batches(
    make_row: Callable[[int], Row], indices: Iterable[int], tokens: int, rng: random.Random
) -> Iterator[Batch]:
    """Yield batches of about `tokens` tokens (padding included).

    Rows of like length share a batch. A batch is yielded as soon as its bucket is full, so the mix
    of lengths is that of the data.
    """
    buckets: dict[int, list[Row]] = {width: [] for width in WIDTHS}
    for index in indices:
        row = make_row(index)
        width = next((width for width in WIDTHS if len(row.ids) <= width), None)
        if width is None:
            continue
        buckets[width].append(row)
        if len(buckets[width]) * width >= tokens - width + 1:
            rows, buckets[width] = buckets[width], []
            rng.shuffle(rows)
            yield collate(rows, width)


def make_lessons(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """Return a function that makes the lesson of a problem: the teacher's solution as a row.

    A share of the lessons is cut at any token and probed for the answer so far: the last value
    that a whole step stated.
    """

    def make(index: int) -> Row:
        problem = make_problem(index, difficulty)
        rng = random.Random(f"{seed}-{index}")
        steps = teach(rng, problem.spec)
        if rng.random() >= PROBED:
            return encoder.encode_solution(problem.text, steps)
        state, whole = create_state(problem.spec), rng.randrange(len(steps))
        for text in steps[:whole]:
            state = read_step(problem.spec, state, text)
        sizes = [len(encoder.backend.encode(text).ids) + 1 for text in steps[: whole + 1]]
        cut = sum(sizes[:-1]) + rng.randrange(sizes[-1] - 1) * (rng.random() < 0.8)
        guess = str(0 if state.value is None else state.value)
        return encoder.encode_solution(problem.text, steps, cut, guess)

    return make


def make_fault_chains(encoder: Encoder, seed: int, difficulty: Difficulty) -> Callable[[int], Row]:
    """Return a function that makes labelled chains: the teacher's, and ones with synthetic faults.

    Three chains share a problem, so that most problems have right and wrong ones.
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
        return encoder.encode_chain(problem.text, problem.spec, steps)

    return make
