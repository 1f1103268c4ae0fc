"""How wrong are the predictors of output lengths, and after how many runs?

    python -m scripts.bench.lengths.prediction_error [--models log_t point ranking] [--sweep]

The workload is synthetic with real lengths (`workload.py`). Each run has 8 outputs. The predictors
learn from the first runs, and the same 300 further prompts measure all of them. `seen`: prompts
that ran once before, with other outputs. `drift`: the lengths double after the last run. The last
line is JSON. About 2 CPU minutes for each text model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from math import isnan

import torch

from flashedge.config import load_config
from flashedge.learned.files import ModelRecord
from flashedge.learned.settings import (
    DISTRIBUTION,
    FAMILIES,
    FITTED,
    OBJECTIVES,
    EncoderSettings,
    ModelSettings,
    TrainingSettings,
)
from flashedge.learned.training import Epoch, train
from flashedge.models.registry import find_pair
from flashedge.runtime.lengths.accuracy import Accuracy, measure
from flashedge.runtime.lengths.base import EncodePrompt, LengthPredictor
from flashedge.runtime.lengths.constant import ConstantPredictor
from flashedge.runtime.lengths.history.predictor import HistoryPredictor
from flashedge.runtime.lengths.history.settings import HistorySettings
from flashedge.runtime.lengths.prompt_encoder import build_prompt_encoder
from flashedge.runtime.lengths.text import TextPredictor
from flashedge.scheduling.lengths.request import FinishedOutputs
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.lengths.explained import measure_explained
from scripts.bench.lengths.workload import LengthWorkload

RUNS = (0, 10, 100, 1_000)
FEW_RUNS = (100, 200, 400)
"""After these the text model log_t is measured as well."""
DRIFT_RUNS = (0, 10, 30, 100)
FIRST_HELD_OUT, FIRST_SWEPT, SWEPT = 1_000_000, 2_000_000, 200
MANY_OUTPUTS = 100
"""Of the prompts by which it is measured how much of the variance is explained."""
PAPER = "log_t_fitted"
MODELS = (*FAMILIES, PAPER, *(name for name in OBJECTIVES if name != DISTRIBUTION))
"""Text models. log_t_fitted has the paper's loss; point and ranking are the rivals'."""
COLUMNS = ("", "median error", "95 %", "log score", "pinball", "tau", "in 50 / 80 / 90 %")


def build_settings(name: str, vocabulary: int) -> tuple[ModelSettings, TrainingSettings]:
    """The settings of one of MODELS."""
    encoder = EncoderSettings(vocabulary=vocabulary)
    if name in OBJECTIVES:
        return ModelSettings(encoder=encoder, objective=name), TrainingSettings()
    if name == PAPER:
        return ModelSettings(encoder=encoder), TrainingSettings(loss=FITTED)
    return ModelSettings(encoder=encoder, family=name), TrainingSettings()


def train_text(name: str, finished: Sequence[FinishedOutputs], vocabulary: int) -> TextPredictor:
    """Train one of MODELS."""
    settings, training = build_settings(name, vocabulary)
    began = time.process_time()

    def note(epoch: Epoch) -> None:
        losses = f"{epoch.train_loss:.3f} {epoch.validation_loss:.3f}"
        print(f"  {name} {epoch.stage} {epoch.number}: {losses}", file=sys.stderr)

    trained = train(finished, settings, training, note)
    seconds = time.process_time() - began
    print(f"{name}: {seconds:.0f} CPU seconds, best epoch {trained.best_epoch}", file=sys.stderr)
    provenance = {"num_prompts": len(finished), "date": "now"}
    record = ModelRecord(
        pair=finished[0].request.pair,
        fingerprint="",
        tokenizer="",
        settings=settings,
        provenance=provenance,
    )
    return TextPredictor(trained.model, record)


def teach(predictor: LengthPredictor, finished: Sequence[FinishedOutputs]) -> LengthPredictor:
    """Let a predictor learn from runs in their order. Returns it."""
    for one in finished:
        predictor.learn(one)
    return predictor


def measure_history(
    encode: EncodePrompt, runs: Sequence[FinishedOutputs], held_out: Sequence[FinishedOutputs]
) -> dict[str, Accuracy]:
    """Measure the history predictor after so many runs, on prompts it knows, and after a drift."""
    found = {}
    for count in RUNS:
        if count <= len(runs):
            found[f"history, {count} runs"] = measure(
                teach(HistoryPredictor(), runs[:count]), held_out
            )
    seen = LengthWorkload(encode).make_many(range(max(0, len(runs) - len(held_out)), len(runs)), 1)
    found["history, seen"] = measure(teach(HistoryPredictor(), runs), seen)
    longer = LengthWorkload(encode, stretch=2.0)
    after = longer.make_many(range(FIRST_HELD_OUT, FIRST_HELD_OUT + len(held_out)))
    for count in DRIFT_RUNS:
        drifted = longer.make_many(range(len(runs), len(runs) + count))
        found[f"history, drift + {count} runs"] = measure(
            teach(HistoryPredictor(), [*runs, *drifted]), after
        )
    return found


def sweep(encode: EncodePrompt, runs: Sequence[FinishedOutputs]) -> None:
    """Print the log score of the history predictor for other settings, on prompts of its own."""
    prompts = range(FIRST_SWEPT, FIRST_SWEPT + SWEPT)
    before = LengthWorkload(encode).make_many(prompts)
    longer = LengthWorkload(encode, stretch=2.0)
    after = longer.make_many(prompts)
    drifted = longer.make_many(range(len(runs), len(runs) + 100))
    shapes = {"own": (1.0,), "1": (1.0, 0.5), "2": (1.0, 0.6, 0.3), "3": (1.0, 0.75, 0.5, 0.25)}
    tried = [
        HistorySettings(parent_runs=p, buckets_per_octave=b, neighbour_weights=shapes[s])
        for p, b, s in product((1.0, 2.0, 4.0), (4, 8), shapes)
    ]
    tried += [HistorySettings(half_life_runs=half_life) for half_life in (50, 100, 200, 400, 800)]
    rows = []
    for settings in tried:
        scores = []
        for count in RUNS[1:]:
            predictor = teach(HistoryPredictor(settings), runs[:count])
            scores.append(measure(predictor, before).log_score)
        teach(predictor, drifted)
        scores.append(measure(predictor, after).log_score)
        rows.append(
            (
                settings.parent_runs,
                settings.buckets_per_octave,
                " ".join(map(str, settings.neighbour_weights)),
                settings.half_life_runs,
                *(f"{score:.3f}" for score in scores),
            )
        )
    after_runs = (f"{count} runs" for count in RUNS[1:])
    head = ("parent runs", "buckets", "neighbours", "half-life", *after_runs, "drift + 100")
    print(format_table(head, rows, "Log score of the history predictor"))


def show(value: float, form: str) -> str:
    """Write a figure, and – where there is none."""
    return "–" if isnan(value) else format(value, form)


def print_accuracies(found: Mapping[str, Accuracy]) -> None:
    """Print one row for each predictor."""
    rows = [
        (
            name,
            show(one.median_error, ".1%"),
            " to ".join(show(bound, ".1%") for bound in one.median_error_95),
            show(one.log_score, ".3f"),
            show(one.pinball, ".4f"),
            show(one.tau, ".3f"),
            " / ".join(show(share, ".0%") for share in one.coverage),
        )
        for name, one in found.items()
    ]
    print(format_table(COLUMNS, rows, "Errors on prompts that were not learned from"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS[-1], help="runs that are learned from")
    parser.add_argument("--held-out", type=int, default=300, help="prompts to measure on")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sweep", action="store_true", help="try the history's settings")
    given = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config()
    pair = find_pair("bundled", config)
    encode, vocabulary = build_prompt_encoder(pair, config), 512
    workload = LengthWorkload(encode)
    runs = workload.make_many(range(given.runs))
    held_out = workload.make_many(range(FIRST_HELD_OUT, FIRST_HELD_OUT + given.held_out))
    if given.sweep:
        sweep(encode, runs)
    found = {"constant": measure(teach(ConstantPredictor(), runs), held_out)}
    found |= measure_history(encode, runs, held_out)
    for count in FEW_RUNS if FAMILIES[0] in given.models else ():
        text = train_text(FAMILIES[0], runs[:count], vocabulary)
        found[f"text, {FAMILIES[0]}, {count} runs"] = measure(text, held_out)
    sampled = LengthWorkload(encode, outputs=MANY_OUTPUTS).make_many(
        range(FIRST_HELD_OUT, FIRST_HELD_OUT + given.held_out)
    )
    explained = {}
    for name in given.models:
        text = train_text(name, runs, vocabulary)
        found[f"text, {name}"] = measure(text, held_out)
        if name in (FAMILIES[0], PAPER):
            explained[name] = [round(share, 3) for share in measure_explained(text, sampled)]
    print_accuracies(found)
    report(
        workload="synthetic prompts, lengths of Qwen2.5-Math on MATH",
        runs=given.runs,
        outputs_a_run=8,
        errors={name: one.to_json() for name, one in found.items()},
        explained=explained,
    )


if __name__ == "__main__":
    main()
