"""The tool pair: both models start from the bundled generator, and learn tool calls.

The verifier's trunk, a language model, learns the right next token from chains with faults. The
verifier is then built as the bundled one is: layers on top of the trunk remember the greatest
surprise (`scripts/train_pair/prm.py`). It sees the conversation without the tools, as FlashEdge
shows it to verifiers. The generator learns from the teacher (`chains.teach_task`), whose
misconceptions it adopts; it reads the tools in the system message.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from flashedge.cli.progress import show_bar
from flashedge.models.registry import BUNDLED
from scripts.train_pair.batches import IGNORE, Batch, Encoder, Row
from scripts.train_pair.checker import split_steps
from scripts.train_pair.decode import sample_texts
from scripts.train_pair.export import export_model, load_generator
from scripts.train_pair.generator import compute_language_loss
from scripts.train_pair.model import Generator, Verifier
from scripts.train_pair.prm import build_verifier
from scripts.train_pair.tokenizer import CHAT_TEMPLATE
from scripts.train_pair.trainer import Run, train
from scripts.train_pair.trunk import FIRST_ROWS, Trunk, compute_trunk_loss, start_trunk
from scripts.train_tools.chains import check_task_steps, make_task_chain, teach_task
from scripts.train_tools.tasks import TOOLS, TRAIN_SEEDS, Task, make_task

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool.function.name }}("
    "{{ tool.function.parameters.properties | join(', ') }})\n{% endfor %}<|im_end|>\n{% endif %}"
    + CHAT_TEMPLATE
)
"""Shows each tool as `sell(item, count)`: schemas would be longer than the task."""

TRUNK_STEPS, GENERATOR_STEPS = 700, 600
MATRIX_LR, OTHER_LR = 0.012, 2e-3
TEACHER_SHARE = 0.4
FAULTS = (0.0, 0.08, 0.15, 0.25)
TRUNK_FIRST, FIT_FIRST, ROLLOUTS_FIRST = 20_000_000, 40_000_000, 60_000_000
"""Where the seeds of each use begin in `TRAIN_SEEDS`, so that none is used twice."""


def load_tokenizer() -> PreTrainedTokenizerFast:
    """The bundled pair's tokenizer with a chat template that shows tools."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(BUNDLED / "generator"))
    tokenizer.chat_template = TOOL_TEMPLATE
    return tokenizer


def format_task(task: Task) -> str:
    """The prompt of a task as the chat template writes it."""
    tools = "".join(f"{name}({', '.join(TOOLS[name])})\n" for name in task.tools)
    return (
        f"<|im_start|>system\n{tools}<|im_end|>\n<|im_start|>user\n{task.text}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def encode_task(encoder: Encoder, task: Task) -> list[int]:
    """The ids of a task's prompt."""
    return list(encoder.backend.encode(format_task(task), add_special_tokens=False).ids)


def make_lessons(encoder: Encoder, seed: int) -> Callable[[int], Row]:
    """Return a function that makes rows of the teacher's solutions."""

    def make(index: int) -> Row:
        task = make_task(TRAIN_SEEDS[index])
        prompt = encode_task(encoder, task)
        answer = encoder.encode_answer(teach_task(random.Random(f"{seed}-{index}"), task))
        size = len(prompt) + len(answer)
        target = [False] * len(prompt) + [True] * len(answer)
        return Row(prompt + answer, target, [IGNORE] * size, [IGNORE] * size)

    return make


def make_checked_chains(encoder: Encoder, seed: int) -> Callable[[int], Row]:
    """Return a function that makes labelled chains: the teacher's, and ones with faults."""

    def make(index: int) -> Row:
        task = make_task(TRAIN_SEEDS[index])
        rng = random.Random(f"{seed}-{index}")
        if rng.random() < TEACHER_SHARE:
            steps = teach_task(rng, task)
        else:
            steps = make_task_chain(rng, task, rng.choice(FAULTS))
        return encode_checked(encoder, task, steps)

    return make


def encode_checked(encoder: Encoder, task: Task, steps: Sequence[str]) -> Row:
    """A chain as the verifier reads it, with the checker's labels."""
    return encoder.encode_checked(task.text, steps, check_task_steps(task, steps))


def train_tool_trunk(folder: Path, steps: int = TRUNK_STEPS, seed: int = 0) -> Trunk:
    """Train a trunk from the bundled generator, resuming from the last checkpoint."""
    encoder = Encoder(load_tokenizer())
    make_row = make_checked_chains(encoder, seed)
    rows = [make_row(TRUNK_FIRST - 1 - index) for index in range(FIRST_ROWS)]
    model = start_trunk(load_generator(BUNDLED / "generator"), encoder, rows)
    compiled = torch.compile(model, dynamic=False)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return compute_trunk_loss(compiled(batch.ids), batch.next)

    run = describe_run("trunk", folder, steps, TRUNK_FIRST, seed)
    train(model, compute_loss, make_row, run)
    return model.eval()


def train_tool_generator(folder: Path, steps: int = GENERATOR_STEPS, seed: int = 0) -> Generator:
    """Train the bundled generator on the teacher's solutions, from the last checkpoint on."""
    model = load_generator(BUNDLED / "generator").train()
    compiled = torch.compile(model, dynamic=False)

    def compute_loss(batch: Batch) -> dict[str, Tensor]:
        return {"loss": compute_language_loss(compiled(batch.ids), batch.next)}

    run = describe_run("generator", folder, steps, 0, seed)
    train(model, compute_loss, make_lessons(Encoder(load_tokenizer()), seed), run)
    return model.eval()


def describe_run(name: str, folder: Path, steps: int, first: int, seed: int) -> Run:
    return Run(
        name=name,
        folder=folder,
        steps=steps,
        matrix_lr=MATRIX_LR,
        other_lr=OTHER_LR,
        cooldown=0.8,
        seed=seed,
        first_index=first,
    )


def sample_checked_rows(
    model: Generator, encoder: Encoder, count: int, seed: int = 0, group: int = 32
) -> list[Row]:
    """Sample 4 chains to each of `count` training tasks and label them."""
    rows: list[Row] = []
    with show_bar("rollouts", count, unit="tasks") as advance:
        for first in range(0, count, group):
            tasks = [
                make_task(TRAIN_SEEDS[ROLLOUTS_FIRST + i])
                for i in range(first, min(first + group, count))
            ]
            prompts = [encode_task(encoder, task) for task in tasks]
            texts = sample_texts(model, encoder, prompts, 4, 0.8, seed + first, limit=384)
            rows += [
                encode_checked(encoder, task, split_steps(text))
                for task, chains in zip(tasks, texts, strict=True)
                for text in chains
                if text.strip()
            ]
            advance(len(tasks))
    return rows


def fit_tool_verifier(
    trunk: Trunk, generator: Generator, tasks: int = 160, seed: int = 0
) -> Verifier:
    """Build the verifier on the trunk; fit it on synthetic faults and the generator's chains."""
    encoder = Encoder(load_tokenizer())
    make = make_checked_chains(encoder, seed)
    rows = [make(FIT_FIRST + index) for index in range(tasks)]
    rows += sample_checked_rows(generator, encoder, tasks, seed)
    return build_verifier(trunk, rows, encoder.end, seed)


def export_tool_pair(generator: Generator, verifier: Verifier, folder: Path) -> None:
    """Write both as Hugging Face folders."""
    tokenizer = load_tokenizer()
    export_model(generator, tokenizer, folder / "generator")
    tokenizer.chat_template = CHAT_TEMPLATE  # the verifier sees no tools
    export_model(verifier, tokenizer, folder / "prm")
