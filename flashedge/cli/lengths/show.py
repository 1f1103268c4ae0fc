"""`lengths show`: what the predictors know, or what they say of one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.lengths.data import read_finished
from flashedge.client.words import format_count
from flashedge.config import Config, load_config

if TYPE_CHECKING:
    from flashedge.models.specs import Pair
    from flashedge.runtime.lengths.history.predictor import Group, HistoryPredictor

MODEL_COLUMNS = ("text model", "trained", "prompts", "outputs", "median error", "use")
LEAST_RUNS = 5
"""Runs that a group of prompts needs to be shown."""
LEAST_DIFFERENCE = 0.2
"""How far its median must be from that of all prompts, as a share of it."""
GROUP_COLUMNS = ("history", "runs", "median", "8 of 10 outputs")


def show(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Explain the predictions for it.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="Strategy of the search; plain for none.")
    ] = "beam",
    pair: Annotated[
        str | None,
        typer.Option(metavar="PAIR", help="Pair to show.", show_default="the setting `pair`"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also groups of few runs, and those like the rest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what the predictors know of a pair, or what they predict for a prompt and why."""
    from flashedge.models.registry import find_pair
    from flashedge.runtime.lengths.base import encode_nothing
    from flashedge.runtime.lengths.history.predictor import HistoryPredictor

    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    history = HistoryPredictor()
    for finished in read_finished(None, chosen, config, encode_nothing):
        history.learn(finished)
    if prompt is not None:
        _explain(prompt, strategy, history, chosen, config, as_json=as_json)
        return
    models = _list_models(chosen, config)
    groups = history.list_groups()
    if as_json:
        output.print_json({"models": models, "history": [_describe(group) for group in groups]})
        return
    output.print_table(MODEL_COLUMNS, map(_format_model, models), "no text model is trained")
    if models:
        output.say()
    shown = groups if everything else _choose_telling(groups)
    output.print_table(GROUP_COLUMNS, map(_format_group, shown), "no run has ended yet")
    if len(shown) < len(groups):
        left = format_count(len(groups) - len(shown), "group")
        output.note(f"{left} of few runs, or like the rest: flashedge lengths show --all")
    if groups:
        output.note(f"{history.num_prompts:,} prompts are known by themselves")


def _choose_telling(groups: Sequence[Group]) -> list[Group]:
    """The groups that add something to the larger one that they are a part of, the last before them
    that is no group of prompts."""
    shown: list[Group] = []
    whole = 0
    for group in groups:
        median = _describe(group)["median_tokens"]
        if not group.is_of_prompts:
            whole = median
        elif group.runs < LEAST_RUNS or abs(median - whole) < LEAST_DIFFERENCE * whole:
            continue
        shown.append(group)
    return shown


def _explain(
    prompt: str,
    strategy: str,
    history: HistoryPredictor,
    pair: Pair,
    config: Config,
    *,
    as_json: bool,
) -> None:
    from flashedge.runtime.lengths.base import join_turns
    from flashedge.runtime.lengths.model_folders import find_folder, find_mismatch, list_records
    from flashedge.runtime.lengths.prompt_encoder import build_prompt_encoder
    from flashedge.runtime.lengths.text import TextPredictor
    from flashedge.scheduling.lengths.request import LengthRequest
    from flashedge.types import Message

    turns = (Message(role="user", content=prompt),)
    request = LengthRequest(
        pair=pair.name,
        kind=strategy,
        prompt_ids=build_prompt_encoder(pair, config)(turns),
        text=join_turns(turns),
        max_tokens=pair.max_path_tokens,
    )
    said = {"history": history.explain(request)}
    for name, record in list_records(pair.name, config):
        if find_mismatch(record, pair, config) is None:
            text = TextPredictor.load(find_folder(pair.name, name, config))
            said[f"text, {name}"] = text.explain(request)
    if as_json:
        output.print_json(said)
    else:
        output.say("\n\n".join(f"{name}: {words}" for name, words in said.items()))


def _list_models(pair: Pair, config: Config) -> list[dict[str, Any]]:
    from flashedge.runtime.lengths.model_folders import find_mismatch, list_records

    return [
        {"name": name, **record.to_json(), "mismatch": find_mismatch(record, pair, config)}
        for name, record in list_records(pair.name, config)
    ]


def _format_model(model: Mapping[str, Any]) -> tuple[object, ...]:
    facts = model["provenance"]
    error = (facts.get("held_out") or {}).get("median_error")
    return (
        model["name"],
        facts["date"],
        f"{facts['num_prompts']:,}",
        f"{facts['num_outputs']:,}",
        None if error is None else f"{error:.1%}",
        f"none: {model['mismatch']}" if model["mismatch"] else "ready",
    )


def _describe(group: Group) -> dict[str, Any]:
    import numpy as np

    low, median, high = group.fit.distribution.quantile(np.array([0.1, 0.5, 0.9])).tolist()
    return {
        "group": group.words,
        "runs": round(group.runs, 1),
        "median_tokens": round(median),
        "low_tokens": round(low),
        "high_tokens": round(high),
    }


def _format_group(group: Group) -> tuple[object, ...]:
    row = _describe(group)
    return (
        row["group"],
        f"{row['runs']:,.0f}",
        f"{row['median_tokens']:,}",
        f"{row['low_tokens']:,} to {row['high_tokens']:,}",
    )
