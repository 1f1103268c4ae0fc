"""How wrong are the predictors of output lengths, and after how many runs?

    python -m scripts.bench.lengths.prediction_error [--text likelihood fitted] [--encoder FOLDER]
        [--samples FILE --tokenizer FOLDER]

The workload is synthetic with real lengths (`workload.py`), and each run has 8 outputs. With
--samples it is real: each problem of the file with half of its answers, 4 of 8; --tokenizer is a
folder with the generator's tokenizer and chat template. The predictors learn from the first runs,
and the same 300 further prompts measure all of them; of a file, the prompts of its second half.
`seen`: prompts that ran once before, with other outputs. `drift`: the lengths double after the last
run. The last line is JSON. About 2 CPU minutes for each text model (`text_model.py`).
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np
import torch

from flashedge.config import load_config
from flashedge.engine.vllm.codec import HFCodec
from flashedge.models.folders import resolve_model
from flashedge.models.registry import find_pair
from flashedge.scheduling.lengths.history import HistoryPredictor
from flashedge.scheduling.lengths.outputs import FinishedOutputs
from flashedge.types import Message, TokenIds
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.lengths.accuracy import Accuracy, Predict, measure, measure_explained
from scripts.bench.lengths.text_model import FITTED, LIKELIHOOD, TextSettings, train
from scripts.bench.lengths.workload import (
    EncodePrompt,
    LengthWorkload,
    SampledWorkload,
    Workload,
    read_samples,
)
from scripts.bench.smoke import SMALL_SAMPLES, parse_arguments
from scripts.lab.distributions import fit_log_t

RUNS = (10, 100, 1_000)
DRIFT_RUNS = (0, 10, 30, 100)
HELD_OUT = range(1_000_000, 1_000_300)
MOST_SEEN = 300
"""Prompts of the first runs that are asked again."""
MANY_OUTPUTS = 100
"""Of the prompts by which it is measured how much of the variance is explained."""
COLUMNS = ("", "median error", "95 %", "log score", "pinball", "tau", "in 50 / 80 / 90 %")


def build_prompt_encoder(tokenizer: Path | None = None) -> EncodePrompt:
    """Encode prompts as the bundled pair does, without starting its engines, or by another folder's
    tokenizer and chat template."""
    if tokenizer is not None:
        return HFCodec(tokenizer).encode_chat
    config = load_config()
    pair = find_pair("bundled", config)
    codec = HFCodec(resolve_model(pair.generator, config), pair.generator.chat_template_kwargs)

    def encode(messages: Sequence[Message]) -> TokenIds:
        system = pair.system_prompt
        first = (Message(role="system", content=system),) if system else ()
        return codec.encode_chat((*first, *messages))

    return encode


def teach(*runs: Sequence[FinishedOutputs]) -> Predict:
    """What history says after these runs."""
    predictor = HistoryPredictor()
    for part in runs:
        for one in part:
            predictor.learn(one)
    return predictor.predict


def fit_constant(runs: Sequence[FinishedOutputs]) -> Predict:
    """One distribution for all prompts."""
    tokens, cut = (
        np.concatenate([getattr(one.lengths, name) for one in runs])
        for name in ("tokens", "is_censored")
    )
    fitted = fit_log_t(tokens, cut)
    return lambda request: fitted


def measure_history(
    build: Callable[[float], Workload], runs: int, held_out: Sequence[int]
) -> dict[str, Accuracy]:
    """Measure history after so many runs, on prompts it knows, and after a drift. build: the
    workload with all lengths times a factor."""
    usual, longer = build(1.0), build(2.0)
    taught, unseen = usual.make_many(range(runs)), usual.make_many(held_out)
    found = {f"history, {k} runs": measure(teach(taught[:k]), unseen) for k in RUNS}
    again = usual.make_many(range(max(0, runs - MOST_SEEN), runs), 1)
    found["history, seen"] = measure(teach(taught), again)
    after = longer.make_many(held_out)
    for count in DRIFT_RUNS:
        drifted = longer.make_many(range(runs, runs + count))
        found[f"history, drift + {count} runs"] = measure(teach(taught, drifted), after)
    return found


def print_accuracies(found: Mapping[str, Accuracy]) -> None:
    """Print one row for each predictor."""

    def show(value: float, form: str) -> str:
        return "–" if isnan(value) else format(value, form)

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    losses = (LIKELIHOOD, FITTED)
    parser.add_argument("--text", nargs="*", default=losses, choices=losses, help="of text models")
    parser.add_argument("--encoder", type=Path, help="folder of a pretrained encoder")
    parser.add_argument("--samples", type=Path, help="real prompts and lengths")
    parser.add_argument("--tokenizer", type=Path, help="folder, for --samples")
    given = parse_arguments(parser, **SMALL_SAMPLES)
    torch.set_num_threads(1)
    encode = build_prompt_encoder(given.tokenizer)
    build: Callable[[float], Workload] = partial(LengthWorkload, encode)
    held_out = HELD_OUT
    if given.samples is not None:
        samples = read_samples(given.samples, encode)
        build, held_out = partial(SampledWorkload, samples), range(len(samples) // 2, len(samples))
    runs, unseen = (build(1.0).make_many(indices) for indices in (range(RUNS[-1]), held_out))
    found = {"constant": measure(fit_constant(runs), unseen)}
    found |= measure_history(build, len(runs), held_out)
    explained = {}
    for loss in given.text:
        settings = TextSettings(loss=loss, checkpoint=given.encoder)
        model = train(runs, settings, lambda line: print(line, file=sys.stderr))
        found[f"text, {loss}"] = measure(model.predict, unseen)
        if given.samples is None:
            sampled = LengthWorkload(encode, outputs=MANY_OUTPUTS).make_many(held_out)
            shares = measure_explained(model.predict, sampled)
            explained[loss] = [round(share, 3) for share in shares]
    print_accuracies(found)
    errors = {name: asdict(one) for name, one in found.items()}
    outputs = runs[0].request.outputs
    report(runs=len(runs), outputs_a_run=outputs, errors=errors, explained=explained)


if __name__ == "__main__":
    main()
