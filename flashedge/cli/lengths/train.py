"""`lengths train`: train the text model of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as change
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.lengths.data import MIN_HELD_OUT, MIN_PROMPTS, check_enough, read_finished
from flashedge.cli.lengths.view import print_accuracies
from flashedge.cli.progress import show_bar
from flashedge.config import Config, load_config
from flashedge.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashedge.learned.settings import EncoderSettings, ModelSettings, TrainingSettings
    from flashedge.learned.training import Trained
    from flashedge.models.specs import Pair
    from flashedge.runtime.lengths.accuracy import Accuracy
    from flashedge.runtime.lengths.text import TextPredictor
    from flashedge.scheduling.lengths.request import FinishedOutputs

NEW, STORED = "new model", "stored model"
WRITTEN, DRY_RUN, USELESS, KEPT = "written", "dry_run", "no_better_than_constant", "kept_stored"


def train(
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
        typer.Option(metavar="PAIR", help="Pair to train for.", show_default="the setting `pair`"),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(metavar="NAME", help="distribution; point or ranking, as other schedulers."),
    ] = "distribution",
    family: Annotated[
        str, typer.Option(metavar="NAME", help="Distribution: log_t, log_t_free or log_normal.")
    ] = "log_t",
    loss: Annotated[
        str,
        typer.Option(metavar="NAME", help="likelihood; fitted, as the paper trains."),
    ] = "likelihood",
    encoder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Pretrained encoder, such as DeBERTa-v3-base.",
            show_default="a small one, trained from scratch",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Passes of each of the two stages.")
    ] = 15,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="The same seed gives the same model.")
    ] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a stored model even if it is better.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do not save the model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model that reads a prompt and predicts how long its outputs get.

    It takes 200 distinct prompts. A fifth of them is held out and measures the model.
    """
    from flashedge.learned.settings import (
        FAMILIES,
        LOSSES,
        OBJECTIVES,
        ModelSettings,
        TrainingSettings,
    )
    from flashedge.models.registry import find_pair
    from flashedge.runtime.lengths.examples import merge_prompts, split
    from flashedge.runtime.lengths.model_folders import find_folder, name_model
    from flashedge.runtime.lengths.prompt_encoder import build_prompt_encoder
    from flashedge.runtime.request.checks import check_choice

    for name, value, known in (
        ("objective", objective, OBJECTIVES),
        ("family", family, FAMILIES),
        ("loss", loss, LOSSES),
    ):
        check_choice(name, value, known)
    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    encode = build_prompt_encoder(chosen, config)
    finished = read_finished(file, chosen, config, encode)
    prompts = merge_prompts(finished)
    check_enough(len(prompts), MIN_PROMPTS, "to train a model", file)
    training_part, held_out = split(prompts)
    check_enough(len(held_out), MIN_HELD_OUT, "that are held out", file)
    reader = build_encoder_settings(encoder, chosen, config)
    settings = ModelSettings(encoder=reader, objective=objective, family=family)
    training = TrainingSettings(loss=loss, epochs=epochs, head_epochs=epochs, seed=seed)
    trained = _train(training_part, settings, training)
    found = _build_predictor(trained, training, training_part, chosen, config)
    folder = find_folder(chosen.name, name_model(settings), config)
    accuracies = _measure(found, folder, split(finished)[0], held_out, chosen, config)
    outcome = _save(found, trained, folder, accuracies, dry_run=dry_run, replace=replace)
    if as_json:
        errors = {name: one.to_json() for name, one in accuracies.items()}
        saved = str(folder) if outcome == WRITTEN else None
        output.print_json({"outcome": outcome, "saved": saved, "errors": errors})
    else:
        print_accuracies(accuracies)
        if outcome == WRITTEN:
            output.say(f"wrote {folder}")
    if outcome == USELESS:
        output.warn(
            "the model is no better than one distribution for all prompts: nothing was written"
        )
        raise typer.Exit(exit_codes.NO_RESULT)
    if outcome == KEPT:
        raise Conflict(
            "the stored model stays: it is better on the same held-out prompts",
            hint="to replace it, add --replace",
        )


def build_encoder_settings(folder: Path | None, pair: Pair, config: Config) -> EncoderSettings:
    """The encoder in `folder`; None: a small one with a row for each token of the generator."""
    from flashedge.learned.settings import EncoderSettings
    from flashedge.runtime.lengths.prompt_encoder import count_vocabulary

    usual = EncoderSettings()
    if folder is not None:
        return change(usual, checkpoint=str(folder.expanduser()))
    return change(usual, vocabulary=min(usual.vocabulary, count_vocabulary(pair, config)))


def _train(
    finished: Sequence[FinishedOutputs], settings: ModelSettings, training: TrainingSettings
) -> Trained:
    from flashedge.learned.training import train as train_model

    total = training.epochs + training.head_epochs
    with show_bar("training", total, unit="epochs") as advance:
        return train_model(finished, settings, training, lambda _: advance(1))


def _build_predictor(
    trained: Trained,
    training: TrainingSettings,
    finished: Sequence[FinishedOutputs],
    pair: Pair,
    config: Config,
) -> TextPredictor:
    """Say where the model comes from."""
    from flashedge.learned.files import ModelRecord
    from flashedge.models.folders import pair_fingerprint
    from flashedge.runtime.lengths.model_folders import hash_tokenizer
    from flashedge.runtime.lengths.text import TextPredictor

    record = ModelRecord(
        pair=pair.name,
        fingerprint=pair_fingerprint(pair, config),
        tokenizer=hash_tokenizer(pair, config),
        settings=trained.model.settings,
        provenance={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "loss": training.loss,
            "num_prompts": len(finished),
            "num_outputs": round(sum(one.lengths.num_outputs for one in finished)),
            "best_epoch": trained.best_epoch,
        },
    )
    return TextPredictor(trained.model, record)


def _measure(
    found: TextPredictor,
    folder: Path,
    runs: Sequence[FinishedOutputs],
    held_out: Sequence[FinishedOutputs],
    pair: Pair,
    config: Config,
) -> dict[str, Accuracy]:
    """Measure the new model, a stored one that fits, and what needs no training."""
    from flashedge.cli.lengths.evaluate import measure_untrained
    from flashedge.runtime.lengths.accuracy import measure
    from flashedge.runtime.lengths.model_folders import find_mismatch
    from flashedge.runtime.lengths.text import TextPredictor

    accuracies = {NEW: measure(found, held_out)}
    if (folder / "model.json").exists():
        stored = TextPredictor.load(folder)
        if find_mismatch(stored.record, pair, config) is None:
            accuracies[STORED] = measure(stored, held_out)
    return accuracies | measure_untrained(runs, held_out)


def _save(
    found: TextPredictor,
    trained: Trained,
    folder: Path,
    accuracies: Mapping[str, Accuracy],
    *,
    dry_run: bool,
    replace: bool,
) -> str:
    """Save the model, unless it is useless or the stored one is better. Returns the outcome."""
    from flashedge.cli.lengths.evaluate import CONSTANT
    from flashedge.learned.files import save_model

    objective, new = found.record.settings.objective, accuracies[NEW]
    if not _is_better(new, accuracies[CONSTANT], objective):
        return USELESS
    if dry_run:
        return DRY_RUN
    stored = accuracies.get(STORED)
    if stored is not None and not replace and not _is_better(new, stored, objective):
        return KEPT
    facts: dict[str, Any] = {**found.record.provenance, "held_out": new.to_json()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    save_model(trained.model, change(found.record, provenance=facts), folder)
    return WRITTEN


def _is_better(one: Accuracy, other: Accuracy, objective: str) -> bool:
    """Whether one predictor does better what its objective is."""
    from flashedge.learned.settings import DISTRIBUTION, POINT

    if objective == DISTRIBUTION:
        return one.log_score < other.log_score
    if objective == POINT:
        return one.median_error < other.median_error
    return one.tau > (other.tau if other.tau == other.tau else 0.0)  # NaN: it orders nothing
