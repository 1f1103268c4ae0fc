"""Commands: `python -m scripts.train_pair COMMAND`.

Every command continues what an earlier, interrupted call began. `all` runs them in order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from scripts.train_pair import problems as data
from scripts.train_pair.batches import Encoder, Row, fault_chains
from scripts.train_pair.evaluate import evaluate
from scripts.train_pair.export import export_model, logit_difference
from scripts.train_pair.generator import new_generator, train_generator
from scripts.train_pair.model import VERIFIER, Generator, Verifier
from scripts.train_pair.prm import build_verifier
from scripts.train_pair.rollouts import mixed, rollout_chains, write_rollouts
from scripts.train_pair.tokenizer import IM_END, train_tokenizer
from scripts.train_pair.trunk import TRUNK, train_trunk

MakeRow = Callable[[int], Row]


def stored_generator(options: argparse.Namespace) -> Generator:
    """The trained generator of the work folder."""
    model = new_generator(options.seed).to(options.device)
    saved = torch.load(
        options.work / "generator.ckpt", weights_only=True, map_location=options.device
    )
    model.load_state_dict(saved["model"])
    return model.eval()


def run_problems(options: argparse.Namespace) -> None:
    """Write the held-out problem files."""
    folder = Path("tests/data")
    data.write_problems(
        folder / "heldout.jsonl", data.make_problems(data.HELDOUT_SEEDS, 200, data.STANDARD)
    )
    data.write_problems(
        folder / "heldout_easy.jsonl", data.make_problems(data.EASY_SEEDS, 100, data.EASY)
    )
    calibration = data.make_problems(data.CALIBRATION_SEEDS, 200, data.STANDARD)
    data.write_problems(folder / "calibration.jsonl", calibration)


def run_generator(options: argparse.Namespace) -> None:
    """Train the generator."""
    tokenizer = train_tokenizer(options.seed)
    train_generator(tokenizer, options.work, options.generator_steps, options.seed, options.device)


def run_rollouts(options: argparse.Namespace) -> None:
    """Let the generator solve training problems."""
    encoder = Encoder(train_tokenizer(options.seed))
    path = options.work / "rollouts.jsonl"
    write_rollouts(stored_generator(options), encoder, path, options.rollouts, seed=options.seed)


def mixed_rows(options: argparse.Namespace, share: float) -> tuple[MakeRow, MakeRow]:
    """Synthetic chains alone, and mixed with a share of the generator's own."""
    encoder = Encoder(train_tokenizer(options.seed))
    faults = fault_chains(encoder, options.seed, data.TRAINING)
    return faults, mixed(faults, rollout_chains(encoder, options.work / "rollouts.jsonl"), share)


def run_trunk(options: argparse.Namespace) -> None:
    """Train the verifier's trunk on from the generator."""
    _, rows = mixed_rows(options, 0.25)
    generator = stored_generator(options).cpu()
    train_trunk(generator, rows, options.work, options.trunk_steps, options.seed, options.device)


def run_prm(options: argparse.Namespace) -> None:
    """Build the verifier on the trunk, fitted on faults and the generator's own chains."""
    tokenizer = train_tokenizer(options.seed)
    faults, rows = mixed_rows(options, 1.0)
    trunk = Generator(TRUNK)
    saved = torch.load(options.work / "trunk.ckpt", weights_only=True, map_location="cpu")
    trunk.load_state_dict(saved["model"])
    sample = [faults(297_000_000 + index) for index in range(options.fit_rows // 4)]
    sample += [rows(index) for index in range(options.fit_rows - len(sample))]
    end = tokenizer.convert_tokens_to_ids(IM_END)
    verifier = build_verifier(trunk.eval(), sample, end, options.seed)
    torch.save(verifier.state_dict(), options.work / "prm.pt")


def run_export(options: argparse.Namespace) -> None:
    """Write both Hugging Face folders and compare transformers' logits with ours."""
    tokenizer = train_tokenizer(options.seed)
    export_model(stored_generator(options).cpu(), tokenizer, options.out / "generator")
    verifier = Verifier(VERIFIER)
    verifier.load_state_dict(torch.load(options.work / "prm.pt", weights_only=True))
    export_model(verifier, tokenizer, options.out / "prm")
    for name in ("generator", "prm"):
        difference = logit_difference(options.out / name)
        print(f"{name}: largest logit difference to transformers {difference:.2e}")


def run_evaluate(options: argparse.Namespace) -> None:
    """Measure the exported pair; the last line is JSON."""
    report = evaluate(
        options.out,
        options.problems,
        n=options.n,
        split=options.split,
        oracle=options.oracle,
        seed=options.seed + 1,
        device=options.device,
    )
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "problems": run_problems,
    "generator": run_generator,
    "rollouts": run_rollouts,
    "trunk": run_trunk,
    "prm": run_prm,
    "export": run_export,
    "evaluate": run_evaluate,
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m scripts.train_pair", description=__doc__)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=Path("runs/train_pair"), help="checkpoints and logs"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("flashedge/bundled"), help="where the pair is written"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--generator-steps", type=int, default=860)
    parser.add_argument("--trunk-steps", type=int, default=480)
    parser.add_argument("--fit-rows", type=int, default=512)
    parser.add_argument(
        "--rollouts", type=int, default=1024, help="problems that the generator solves four times"
    )
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--split", choices=("heldout", "calibration"), default="heldout")
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument(
        "--oracle", action="store_true", help="also search with the exact checker (the ceiling)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in COMMANDS if options.command == "all" else [options.command]:
        print(f"== {name}", flush=True)
        COMMANDS[name](options)


if __name__ == "__main__":
    main()
