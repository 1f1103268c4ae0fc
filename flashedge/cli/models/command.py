"""`models ls|show|pull|rm|eval`: the known pairs, and their files on this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.models.evaluate import evaluate
from flashedge.config import Config, find_nearest, load_config
from flashedge.errors import NotFound
from flashedge.models.folders import is_folder, locate_model
from flashedge.models.registry import find_embedder, find_pair, load_pairs
from flashedge.models.specs import ModelSpec, Pair
from flashedge.sizes import format_size

EPILOG = """\
[bold]Examples[/]
  flashedge models pull math-1.5b+skywork-1.5b
  flashedge models eval --problems problems.jsonl -n 4,16
"""
app = typer.Typer(help="Pairs of a generator and a verifier.", no_args_is_help=True, epilog=EPILOG)
app.command(name="eval")(evaluate)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A pair, or a model as `models show` names it.")
]


@app.command(name="ls")
def ls(as_json: Json = False) -> None:
    """List the pairs, and whether their files are on this machine."""
    config = load_config()
    found = [_describe(pair, config) for pair in load_pairs(config).values()]
    if as_json:
        output.print_json(found)
        return
    rows = [
        (
            p["name"],
            "ready" if p["local"] else "to pull",
            "yes" if p["memory"]["fits"] else "no",
            p["description"],
        )
        for p in found
    ]
    output.print_table(("pair", "files", "fits 24 GB", "description"), rows, "no pairs")


@app.command(name="show")
def show(name: Name, as_json: Json = False) -> None:
    """Show one pair: models, revisions, memory plan, defaults."""
    config = load_config()
    pair = find_pair(name, config)
    if as_json:
        output.print_json(_describe(pair, config))
        return
    print(f"{pair.name}: {pair.description}")
    for role, spec in (("generator", pair.generator), ("verifier", pair.verifier)):
        folder = locate_model(spec, config)
        revision = f" @ {spec.revision}" if spec.revision else ""
        print(f"  {role}: {spec.source}{revision}")
        weights = "" if spec.weights_bytes is None else f", {format_size(spec.weights_bytes)}"
        print(f"    {spec.dtype}, {spec.max_model_len} tokens{weights}")
        print(
            f"    {folder if folder else 'not on this machine: flashedge models pull ' + pair.name}"
        )
    memory = pair.memory
    print(
        f"  KV cache: {format_size(memory.generator_kv_bytes)} +"
        f" {format_size(memory.verifier_kv_bytes)} on a device of"
        f" {format_size(memory.total_bytes)}{'' if memory.fits else '; does not fit it'}"
    )


@app.command(name="pull")
def pull(
    name: Name,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Copy from a Hugging Face cache or from a model's own folder.",
        ),
    ] = None,
) -> None:
    """Download a pair's models from the Hugging Face hub, or copy them from a folder."""
    from flashedge.cli.models.download import pull_from_folder, pull_from_hub

    config = load_config()
    for spec in _find_models(name, config):
        if is_folder(spec.source):
            output.note(f"{spec.source} is a folder on this machine: nothing to download")
        elif source is None:
            print(pull_from_hub(spec, config))
        else:
            print(pull_from_folder(spec, source.expanduser(), config))


@app.command(name="rm")
def rm(name: Name) -> None:
    """Remove a pair's models from FlashEdge's own cache. Nothing else is touched."""
    from flashedge.cli.models.download import remove

    config = load_config()
    for spec in _find_models(name, config):
        freed = None if is_folder(spec.source) else remove(spec, config)
        if freed is None:
            output.note(f"{spec.source}: not in FlashEdge's cache; nothing removed")
        else:
            output.note(f"removed {spec.source}, {format_size(freed)}")


def _find_models(name: str, config: Config) -> tuple[ModelSpec, ...]:
    """Both models of the pair `name`, or the one model whose source it is.

    A model belongs to a pair, or `[clusters] model` names it. Raises NotFound.
    """
    pairs = load_pairs(config)
    if name in pairs:
        return pairs[name].generator, pairs[name].verifier
    models = {s.source: s for p in pairs.values() for s in (p.generator, p.verifier)}
    if embedder := find_embedder(config):
        models[embedder.source] = embedder
    if name in models:
        return (models[name],)
    known = [*pairs, *models]
    close = find_nearest(name, known)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(pairs)}"
    raise NotFound(f"there is no pair or model {name!r}", hint=hint, param="pair")


def _describe(pair: Pair, config: Config) -> dict[str, Any]:
    entry = dataclasses.asdict(pair)
    for role, spec in (("generator", pair.generator), ("verifier", pair.verifier)):
        folder = locate_model(spec, config)
        entry[role]["folder"] = None if folder is None else str(folder)
    entry["local"] = bool(entry["generator"]["folder"] and entry["verifier"]["folder"])
    entry["needed_bytes"] = pair.needed_bytes
    return entry
