"""Make the bundled pair, step by step: `python -m scripts.train_pair COMMAND`.

Every command continues an earlier, interrupted call. `all` runs every command in order.
"""

import argparse
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from scripts.train_pair import problems as data
from scripts.train_pair.batches import Encoder, make_fault_chains
from scripts.train_pair.card import format_card
from scripts.train_pair.curves import draw_curves
from scripts.train_pair.evaluate import evaluate
from scripts.train_pair.export import export_model, measure_logit_difference
from scripts.train_pair.generator import train_generator
from scripts.train_pair.model import GENERATOR, VERIFIER, Generator, Verifier
from scripts.train_pair.prm import build_verifier
from scripts.train_pair.rollouts import read_rollouts, write_rollouts
from scripts.train_pair.tokenizer import train_tokenizer
from scripts.train_pair.trainer import Run
from scripts.train_pair.trunk import TRUNK, Trunk, train_trunk

Model = TypeVar("Model", bound=nn.Module)
FIRST_CHAIN = 300_000_000  # the trunk's first row; the generator's is 0


def load_tokenizer(options: argparse.Namespace) -> PreTrainedTokenizerFast:
    """Load the tokenizer from the work folder, or train it there first."""
    folder: Path = options.work / "tokenizer"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        train_tokenizer(options.seed).save_pretrained(str(part))
        try:
            part.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            shutil.rmtree(part)  # another training made it meanwhile; both are equal
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def load_trained(model: Model, name: str, work: Path) -> Model:
    """Load the weights of a trained language model from the work folder."""
    saved = torch.load(work / f"{name}.ckpt", weights_only=True, map_location="cpu")
    model.load_state_dict(saved["model"])
    return model.eval()


def plan_run(name: str, first: int, options: argparse.Namespace) -> Run:
    """Build the settings of a training from the command line."""
    return Run(
        name=name,
        folder=options.work,
        steps=options.steps,
        tokens_per_step=options.tokens,
        cooldown=0.7,
        seed=options.seed,
        first_index=first,
        save_every=25,
        log_every=10,
        device=options.device,
        processes=options.processes,
    )


def run_problems(options: argparse.Namespace) -> None:
    """Write the held-out problem files."""
    folder = Path("tests/data")
    data.write_problems(
        folder / "heldout.jsonl", data.make_problems(data.HELDOUT_SEEDS, 500, data.STANDARD)
    )
    data.write_problems(
        folder / "heldout_easy.jsonl", data.make_problems(data.EASY_SEEDS, 100, data.EASY)
    )
    calibration = data.make_problems(data.CALIBRATION_SEEDS, 200, data.STANDARD)
    data.write_problems(folder / "calibration.jsonl", calibration)


def run_generator(options: argparse.Namespace) -> None:
    """Train the generator."""
    train_generator(load_tokenizer(options), plan_run("generator", 0, options))


def run_rollouts(options: argparse.Namespace) -> None:
    """Sample the generator's own chains on training problems."""
    encoder = Encoder(load_tokenizer(options))
    path = options.work / "rollouts.jsonl"
    model = load_trained(Generator(GENERATOR), "generator", options.work).to(options.device)
    write_rollouts(model, encoder, path, options.rollouts, seed=options.seed)


def run_trunk(options: argparse.Namespace) -> None:
    """Train the verifier's trunk on chains with faults."""
    generator = load_trained(Generator(GENERATOR), "generator", options.work)
    run = replace(
        plan_run("trunk", FIRST_CHAIN, options), matrix_lr=0.006, other_lr=1e-3, cooldown=1.0
    )
    train_trunk(generator, load_tokenizer(options), run)


def run_prm(options: argparse.Namespace) -> None:
    """Build the verifier on the trunk; fit it on synthetic faults and the generator's chains."""
    tokenizer = load_tokenizer(options)
    encoder = Encoder(tokenizer)
    faults = make_fault_chains(encoder, options.seed, data.TRAINING)
    rows = read_rollouts(encoder, options.work / "rollouts.jsonl")
    trunk = load_trained(Trunk(TRUNK), "trunk", options.work)
    sample = [faults(297_000_000 + index) for index in range(options.fit_rows // 4)]
    sample += [rows(index) for index in range(options.fit_rows - len(sample))]
    sample = [row for row in sample if len(row.ids) <= TRUNK.max_positions]
    verifier = build_verifier(trunk, sample, encoder.end, options.seed)
    torch.save(verifier.state_dict(), options.work / "prm.pt")


def run_export(options: argparse.Namespace) -> None:
    """Write both Hugging Face folders and compare our logits with transformers'."""
    tokenizer = load_tokenizer(options)
    generator = load_trained(Generator(GENERATOR), "generator", options.work)
    export_model(generator, tokenizer, options.out / "generator")
    verifier = Verifier(VERIFIER)
    verifier.load_state_dict(torch.load(options.work / "prm.pt", weights_only=True))
    export_model(verifier, tokenizer, options.out / "prm")
    for name in ("generator", "prm"):
        difference = measure_logit_difference(options.out / name)
        print(f"{name}: largest logit difference to transformers {difference:.2e}")


def run_evaluate(options: argparse.Namespace) -> None:
    """Evaluate the exported pair on the real engines. The last line is JSON."""
    held_out = options.split == "heldout"
    seeds = data.HELDOUT_SEEDS if held_out else data.CALIBRATION_SEEDS
    problems = list(data.make_problems(seeds, options.problems, data.STANDARD))
    file = Path(f"tests/data/{options.split}.jsonl")
    folder = options.work / f"evaluation-{options.split}"
    report = evaluate(options.out, folder, problems, file, options.n, options.seed, options.port)
    print(json.dumps(report))


def run_card(options: argparse.Namespace) -> None:
    """Print the measured part of the model card."""
    report = options.work / f"evaluation-{options.split}" / "report_checked.json"
    print(format_card(json.loads(report.read_text())))


def run_curves(options: argparse.Namespace) -> None:
    """Draw the curves of both trainings."""
    draw_curves(options.work, options.work / "curves.svg")


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse `4,16` into (4, 16)."""
    return tuple(int(part) for part in text.split(","))


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "problems": run_problems,
    "generator": run_generator,
    "rollouts": run_rollouts,
    "trunk": run_trunk,
    "prm": run_prm,
    "export": run_export,
    "evaluate": run_evaluate,
    "card": run_card,
    "curves": run_curves,
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m scripts.train_pair", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--seed", type=int, default=0, help="seed of every step")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/train_pair"), help="folder for checkpoints and logs"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("flashedge/bundled"), help="folder for the exported pair"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of PyTorch")
    parser.add_argument("--steps", type=int, default=9000, help="updates of each training")
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of an update")
    parser.add_argument(
        "--processes",
        type=int,
        default=7 if torch.cuda.is_available() else 0,
        help="processes that make the batches of a training",
    )
    parser.add_argument(
        "--fit-rows", type=int, default=512, help="labelled chains that the verifier is fitted on"
    )
    parser.add_argument(
        "--rollouts",
        type=int,
        default=384,
        help="training problems that the generator solves, four chains each",
    )
    parser.add_argument("--problems", type=int, default=200, help="problems to evaluate")
    parser.add_argument("--split", choices=("heldout", "calibration"), default="heldout")
    parser.add_argument(
        "--n", type=parse_numbers, default=(4, 16), help="numbers of paths, as 4,16,64"
    )
    parser.add_argument("--port", type=int, default=8650, help="port of the evaluating daemon")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads don't survive the forks
    for name in COMMANDS if options.command == "all" else [options.command]:
        print(f"== {name}", flush=True)
        COMMANDS[name](options)


if __name__ == "__main__":
    main()
