"""`lengths eval`: how wrong the predictors are, on prompts that they did not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashedge.cli import output
from flashedge.cli.lengths.data import MIN_HELD_OUT, check_enough, read_finished
from flashedge.cli.lengths.view import print_accuracies
from flashedge.config import Config, load_config

if TYPE_CHECKING:
    from flashedge.models.specs import Pair
    from flashedge.runtime.lengths.accuracy import Accuracy
    from flashedge.scheduling.lengths.request import FinishedOutputs

CONSTANT, HISTORY = "constant", "history"


def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="JSON lines of prompts and the lengths of their outputs.",
            show_default="the stored runs",
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            metavar="PAIR", help="Pair to measure for.", show_default="the setting `pair`"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the predictors on held-out prompts: the errors of their medians, orders and spreads.

    A fifth of the prompts is held out, the same ones as in training. History learns from the
    others first, in the order of the runs.
    """
    from flashedge.models.registry import find_pair
    from flashedge.runtime.lengths.examples import merge_prompts, split
    from flashedge.runtime.lengths.prompt_encoder import build_prompt_encoder

    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    finished = read_finished(file, chosen, config, build_prompt_encoder(chosen, config))
    runs, _ = split(finished)
    held_out = split(merge_prompts(finished))[1]
    check_enough(len(held_out), MIN_HELD_OUT, "that are held out, a fifth of all", file)
    accuracies = measure_untrained(runs, held_out) | _measure_stored(held_out, chosen, config)
    if as_json:
        output.print_json({name: one.to_json() for name, one in accuracies.items()})
    else:
        print_accuracies(accuracies)


def measure_untrained(
    runs: Sequence[FinishedOutputs], held_out: Sequence[FinishedOutputs]
) -> dict[str, Accuracy]:
    """Measure what needs no training, once it has seen the runs in their order."""
    from flashedge.runtime.lengths.accuracy import measure
    from flashedge.runtime.lengths.constant import ConstantPredictor
    from flashedge.runtime.lengths.history.predictor import HistoryPredictor

    found = {}
    for name, predictor in ((CONSTANT, ConstantPredictor()), (HISTORY, HistoryPredictor())):
        for run in runs:
            predictor.learn(run)
        found[name] = measure(predictor, held_out)
    return found


def _measure_stored(
    held_out: Sequence[FinishedOutputs], pair: Pair, config: Config
) -> dict[str, Accuracy]:
    """Measure the stored models that fit the pair."""
    from flashedge.runtime.lengths.accuracy import measure
    from flashedge.runtime.lengths.model_folders import find_folder, find_mismatch, list_records
    from flashedge.runtime.lengths.text import TextPredictor

    found = {}
    for name, record in list_records(pair.name, config):
        why = find_mismatch(record, pair, config)
        if why is None:
            text = TextPredictor.load(find_folder(pair.name, name, config))
            found[f"text, {name}"] = measure(text, held_out)
        else:
            output.note(f"left out: the text model {name}, since {why}")
    return found
