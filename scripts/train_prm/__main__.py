"""Make a process reward model for a generator: `python -m scripts.train_prm VERB`.

  sample   draw solutions of --problems by the generator, to judge on, and of --train-problems
  train    learn from --samples, or from those that `sample` drew: writes adapter.safetensors
  merge    write the folder that vLLM serves, and print the entries of models.toml for it
  judge    score the solutions of problems that were not trained on, and measure the scores
  card     write the verifier's card, card.md
  all      all of these

Everything stands in the folder --work. What exists there is not made again unless what it was made
of is newer, and what --minutes cut off goes on with the next call of the same command. Options that
would mix other work with it are refused.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import tomlkit
import torch

from flashedge.cli.config import edit_file
from flashedge.config import load_config
from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.errors import ConfigError, FlashEdgeError
from flashedge.files.problems import read_labelled
from flashedge.models.checkpoints import check_checkpoint
from scripts.train_prm.card import write_card
from scripts.train_prm.draw import Drawer
from scripts.train_prm.judge import build_report, score_solutions
from scripts.train_prm.model import RewardModel, load_body, load_merged, merge_adapter, save_adapter
from scripts.train_prm.samples import (
    Row,
    Solutions,
    encode_rows,
    find_step_token,
    read_lines,
    read_samples,
)
from scripts.train_prm.trainer import Plan, calibrate, probe_speed, train

SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
AFTER_S = 100.0
"""What calibrating, merging and judging may take on a card. In `all` the training leaves it."""
LEAST_S = 60.0
"""With less time for it no training begins: it would end as a verifier that knows nothing."""
SHAPING = {
    "sample": ("generator", "system_prompt", "n", "solution_tokens", "seed"),
    "train": (
        *("generator", "samples", "system_prompt", "step_token", "seed"),
        *("tokens", "rank", "epochs", "batch", "calibrate"),
    ),
    "judge": ("judge_samples", "tokens"),
}
"""The options on which the work of a part depends."""


class TimeIsUp(Exception):
    """The call's --minutes ended first."""


def check_options(asked: argparse.Namespace, part: str) -> None:
    """Raises ConfigError if the part was started with other options."""
    file: Path = asked.work / "options.json"
    started = json.loads(file.read_text()) if file.exists() else {}
    options = {name: str(getattr(asked, name)) for name in SHAPING[part]}
    for name in options.keys() & {"samples", "judge_samples"}:
        file_bytes = getattr(asked, name).stat().st_size if getattr(asked, name).exists() else 0
        options[name] += f" ({file_bytes} bytes)"
    for name, value in started.setdefault(part, options).items():
        if value != options[name]:
            raise ConfigError(
                f"{part} was started in {asked.work} with {name} {value}, not {options[name]}",
                hint="give the same options, or another --work",
                param=name,
            )
    file.write_text(json.dumps(started, indent=1))


def is_made(file: Path, source: Path) -> bool:
    """Whether the file exists and is not older than what it is made of, if that is there."""
    times = [each.stat().st_mtime_ns for each in (file, source) if each.exists()]
    return file.exists() and times[0] >= times[-1]


def build_form(asked: argparse.Namespace) -> QwenPrm:
    options = {"step_token": asked.step_token, "system_prompt": asked.system_prompt}
    return QwenPrm(asked.generator, options)


def run_sample(asked: argparse.Namespace) -> None:
    check_options(asked, "sample")
    drawer = Drawer(
        generator=asked.generator,
        form=build_form(asked),
        n=asked.n,
        most_tokens=asked.solution_tokens,
        seed=asked.seed,
        until=asked.until,
    )
    for problems, output in (
        (asked.problems, asked.work / "samples.jsonl"),
        (asked.train_problems, asked.work / "train_samples.jsonl"),
    ):
        if problems and not drawer.draw(read_labelled(problems, asked.limit), output):
            raise TimeIsUp


def run_train(asked: argparse.Namespace) -> None:
    check_options(asked, "train")
    file: Path = asked.work / "adapter.safetensors"
    if file.exists():
        return
    body = load_body(asked.generator)
    solutions, form = read_samples(asked.samples), build_form(asked)
    first = max(0, len(solutions) - asked.calibrate)

    def encode(one: Solutions) -> list[Row]:
        return [row for row in encode_rows(form, one, asked.tokens) if row.ends]

    mixed = [encode(one) for one in solutions[:first] if one.is_mixed]
    learnt = [rows for rows in mixed if len({row.right for row in rows}) == 2]
    others = [encode(one) for one in solutions[first:]]
    if not learnt or not any(others):
        told = f"no problem in {asked.samples} has a right and a wrong solution that fit --tokens"
        hint = f"draw more; the last {asked.calibrate} problems are left for the calibration"
        raise ConfigError(told, hint=hint, param="samples")
    torch.manual_seed(asked.seed)
    model = RewardModel(body, asked.rank)
    if asked.recompute:
        body.gradient_checkpointing_enable({"use_reentrant": False})
    if body.device.type == "cuda":
        probe_speed(model, learnt[0])
    left_s = asked.until - time.monotonic() - (AFTER_S if asked.verb == "all" else 0.0)
    if asked.train_minutes is None and left_s < LEAST_S:
        raise TimeIsUp
    plan = Plan(
        seconds=left_s if asked.train_minutes is None else 60 * asked.train_minutes,
        epochs=asked.epochs,
        problems=asked.batch,
        seed=asked.seed,
        until=asked.until,
    )
    did = train(model, learnt, plan, asked.work)
    if not did or not did["steps"]:
        raise TimeIsUp
    slope, offset = calibrate(model, others)
    about = {"step_token": asked.step_token, "system_prompt": asked.system_prompt}
    made = about | {
        "generator": asked.generator.name,
        "problems": len(learnt),
        "solutions": sum(map(len, learnt)),
        "share_right": sum(r.right for rows in learnt for r in rows) / sum(map(len, learnt)),
        "rank": asked.rank,
        "calibrated_on": len(others),
        "slope": slope,
        "offset": offset,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU",
        **did,
    }
    (asked.work / "train.json").write_text(json.dumps(made, indent=1))
    save_adapter(model, file, **about)


def run_merge(asked: argparse.Namespace) -> None:
    folder, adapter = asked.work / "model", asked.work / "adapter.safetensors"
    if not is_made(folder / "config.json", adapter):
        merge_adapter(asked.generator, adapter, folder)
    check_checkpoint(folder, family="qwen_prm", tokens=(asked.step_token,))
    config = json.loads((folder / "config.json").read_text())
    length = min(4096, config["max_position_embeddings"])
    shared = {"dtype": config["dtype"], "max_model_len": length}
    trained = min(length, asked.tokens)  # beyond it a score is a guess
    name = asked.name
    entries = {
        "generators": {"source": str(asked.generator), **shared},
        "verifiers": {
            "source": str(folder),
            **shared,
            "family": "qwen_prm",
            "step_token": asked.step_token,
            "system_prompt": asked.system_prompt,
        },
        "pairs": {
            "description": f"{asked.generator.name} with a verifier trained on its solutions",
            "generator": name,
            "verifier": name,
            "sampling": {"temperature": 0.8},
            "max_step_tokens": trained // 4,
            "max_path_tokens": trained // 4 * 3,
            "system_prompt": asked.system_prompt,
        },
    }
    print(tomlkit.dumps({kind: {name: entry} for kind, entry in entries.items()}), flush=True)
    if asked.add:

        def add(document: tomlkit.TOMLDocument) -> None:
            for kind, entry in entries.items():
                document.setdefault(kind, {})[name] = entry

        edit_file(load_config().config_dir / "models.toml", add)


def run_judge(asked: argparse.Namespace) -> None:
    check_options(asked, "judge")
    output, scores = asked.work / "report.json", asked.work / "scores.jsonl"
    merged = asked.work / "model" / "config.json"
    if is_made(output, merged):
        return
    if not is_made(scores, merged):
        scores.unlink(missing_ok=True)
    problems = read_samples(asked.judge_samples)
    known = {line["problem"] for line in read_lines(asked.samples)}
    if seen := [one.problem for one in problems if one.problem in known]:
        told = f"{len(seen)} problems of {asked.judge_samples} were trained on, or calibrated on"
        raise ConfigError(f"{told}: {seen[0][:60]!r}", param="judge-samples")
    model, form = load_merged(asked.work / "model"), build_form(asked)
    records = score_solutions(model, form, problems, asked.tokens, scores, asked.until)
    if records is None:
        raise TimeIsUp
    output.write_text(json.dumps(build_report(records), indent=1))


def run_card(asked: argparse.Namespace) -> None:
    report, made = (json.loads((asked.work / f"{n}.json").read_text()) for n in ("report", "train"))
    write_card(report, made, asked.work)
    print((asked.work / "card.md").read_text())


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "sample": run_sample,
    "train": run_train,
    "merge": run_merge,
    "judge": run_judge,
    "card": run_card,
}


def run_all(asked: argparse.Namespace) -> None:
    """Run all parts. The last line is JSON: the seconds of each part in this call."""
    took: dict[str, float] = {}
    for name, run in PARTS.items():
        began = time.monotonic()
        if name == "sample":  # the engine gives its memory back when its process ends
            left = str((asked.until - time.monotonic()) / 60)
            again = [sys.executable, "-m", "scripts.train_prm", name, *sys.argv[2:]]
            if asked.problems or asked.train_problems:
                done = subprocess.run([*again, "--minutes", left], check=False)
                if done.returncode:
                    sys.exit(done.returncode)  # it has said why
        else:
            run(asked)
        took[name] = round(time.monotonic() - began, 1)
    print(json.dumps(took))


VERBS = {**PARTS, "all": run_all}


def parse_options(began: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_prm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("verb", choices=VERBS)
    add("--generator", type=Path, required=True, help="its folder: a Qwen2 or a Llama")
    add("--work", type=Path, default=Path("runs/train_prm"), help="folder for all that is made")
    add("--samples", type=Path, help="solutions to learn from, if they are not to be drawn")
    add("--judge-samples", type=Path, help="solutions to judge on, if they are not to be drawn")
    add("--problems", type=Path, help="draw solutions of these problems to judge on")
    add("--train-problems", type=Path, help="draw solutions of these problems to learn from")
    add("--limit", type=int, help="problems of each file to draw for")
    add("--n", type=int, default=8, help="solutions to draw of each problem")
    add("--solution-tokens", type=int, default=512, help="of a solution that is drawn")
    add("--minutes", type=float, default=8.0, help="this call aims to stop by then")
    add("--train-minutes", type=float, help="of the training, over all calls; else what is left")
    add("--epochs", type=int, default=4, help="the training ends by then")
    add("--batch", type=int, default=6, help="problems of a batch")
    add("--recompute", action="store_true", help="layers, for less memory and more time")
    add("--calibrate", type=int, default=150, help="problems at the end that only calibrate")
    add("--rank", type=int, default=16, help="of the trained changes of each matrix")
    add("--tokens", type=int, default=1024, help="of a problem and a solution; more is cut off")
    add("--step-token", help="one that the generator never writes; else a known one is found")
    add("--system-prompt", default=SYSTEM_PROMPT)
    add("--name", default="trained", help="of the pair in models.toml")
    add("--add", action="store_true", help="add the pair to your models.toml")
    add("--seed", type=int, default=0)
    asked = parser.parse_args()
    if sys.argv[1] != asked.verb:
        parser.error("the verb comes first")
    if asked.calibrate < 1:
        parser.error("--calibrate takes at least one problem")
    asked.until = began + 60 * asked.minutes
    asked.generator, asked.work = asked.generator.resolve(), asked.work.resolve()
    asked.samples = (asked.samples or asked.work / "train_samples.jsonl").resolve()
    asked.judge_samples = (asked.judge_samples or asked.work / "samples.jsonl").resolve()
    return asked


def main(spent_s: float = 0.0) -> None:
    """spent_s: of --minutes, before this was called."""
    asked = parse_options(time.monotonic() - spent_s)
    asked.work.mkdir(parents=True, exist_ok=True)
    try:
        asked.step_token = asked.step_token or find_step_token(asked.generator)
        VERBS[asked.verb](asked)
    except TimeIsUp:
        sys.exit(f"{asked.minutes:g} minutes are over; type the same command to go on")
    except FlashEdgeError as error:
        print(error.line, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(time.time() - psutil.Process().create_time())
