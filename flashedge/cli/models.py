"""`models ls|show|pull|import|rm|eval`: the known pairs, and their files on this machine."""

import dataclasses
import errno
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from flashedge.cli import lab, output
from flashedge.cli.config import edit_file
from flashedge.cli.output import Json
from flashedge.cli.progress import show_bar
from flashedge.config import Config, find_nearest, load_config
from flashedge.errors import CheckpointError, ConfigError, DaemonError, NotFound
from flashedge.models.checkpoints import check_checkpoint
from flashedge.models.folders import (
    check_model,
    find_commit,
    find_snapshot,
    is_folder,
    locate_hub,
    locate_model,
    locate_source,
)
from flashedge.models.memory.card_memory import (
    KNOWN_CARDS,
    CardMemory,
    build_idle_card,
    describe_count,
)
from flashedge.models.memory.fit import PairNeed, find_need
from flashedge.models.registry import (
    find_embedder,
    find_pair,
    is_bundled,
    list_files,
    load_pairs,
    read_tables,
)
from flashedge.models.specs import ModelSpec, Pair
from flashedge.sizes import format_size

EPILOG = """\
[bold]Examples[/]
  flashedge models pull math-1.5b+skywork-1.5b
  flashedge models import ~/models/Qwen3-4B-Q4_K_M.gguf --name qwen3-4b-local
  flashedge models eval --problems problems.jsonl -n 4,16
"""
app = typer.Typer(
    cls=lab.GroupWithLab,
    help="Pairs of a generator and a verifier.",
    no_args_is_help=True,
    epilog=EPILOG,
)
lab.add_lab_command(app, "eval")
SHOP_CARDS = (
    build_idle_card("12 GB", 12 << 30),
    *(
        build_idle_card(name, KNOWN_CARDS[card].memory_bytes)
        for name, card in (("16 GB", "rtx4080"), ("24 GB", "rtx4090"), ("32 GB", "rtx5090"))
    ),
)
"""Common sizes of cards, the smallest first. `models ls` names the first that fits."""
NO_CARD_BYTES = 1 << 30
"""A pair with smaller weights needs no card: a CPU that reads 20 GB/s from memory still computes
about 20 tokens/s, which is as fast as anybody reads."""
_PATTERNS = ["*.json", "*.safetensors", "*.bin", "*.txt", "*.model", "*.jinja"]
_OTHER_FORMATS = ["onnx/*", "openvino/*"]
_SPARE_BYTES = 1 << 28
"""Disk space that a download leaves free. Chosen by hand: enough for logs and runs for a while."""
USUAL_VERIFIER = "skywork-1.5b"
"""The verifier of an imported model, unless another one is named."""
_IMPORTED_LEN = 16_384
"""Most tokens of prompt and path that an imported model's entry allows."""
_OFFLINE = "check the network, or copy the files: flashedge models pull NAME --from FOLDER"
_OTHER_CACHE = "choose a folder that you may write: flashedge config set cache_dir FOLDER"
Name = Annotated[str, Argument(metavar="NAME", help="A pair, or a model of `models show`.")]


@app.command(name="ls")
def ls(
    fit: Annotated[
        bool, Option("--fit", help="Only pairs that fit this machine's card, or --gpu.")
    ] = False,
    gpu: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="With --fit: another card (rtx4090), its memory (80GiB), or several: 8GiB,8GiB.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the pairs, whether their files are on this machine, and what a download would take.

    The sizes are roughly those of the weights. The licences are those that the models' cards name:
    the generator's, and then the verifier's if it differs.
    """
    config = load_config()
    if gpu is not None and not fit:
        raise ConfigError("--gpu says where a pair is to fit", hint="add --fit", param="gpu")
    if fit:
        _list_fitting(gpu, config, as_json=as_json)
        return
    pairs = load_pairs(config).values()
    found = [_describe(pair, config) for pair in pairs]
    if as_json:
        output.print_json(found)
        return
    rows = []
    for pair, p in zip(pairs, found, strict=True):
        licences = dict.fromkeys(model.license or "?" for model in pair.models.values())
        licence = None if p["is_bundled"] else " + ".join(licences)
        card = p["smallest_card"] or ("?" if p["needed_bytes"] is None else "larger")
        rows.append((p["name"], _format_missing(p), card, licence, p["description"]))
    columns = ("pair", "to pull", "card", "licence", "description")
    output.print_table(columns, rows, "no pairs")


def _format_missing(pair: dict[str, Any]) -> str:
    """About how much has to be downloaded."""
    if pair["local"]:
        return "nothing"
    size = pair["download_bytes"]
    return "?" if size is None else f"~{size / 1e9:.1f} GB"


def _list_fitting(gpu: str | None, config: Config, *, as_json: bool) -> None:
    from flashedge.cli.doctor.fit import find_place

    place = find_place(gpu, config)
    found = []
    for pair in load_pairs(config).values():
        try:
            need = find_need(pair, config, place)
        except (CheckpointError, ConfigError):
            continue  # its shape is unknown until it is pulled, or it can't be spread over cards
        if need.fits(place):
            paths = need.count_paths(place, pair.max_path_tokens)
            room = {"kv_bytes": need.sum_rooms(place), "paths": paths}
            found.append({**_describe(pair, config), "room": room})
    if as_json:
        output.print_json(found)
        return
    rows = []
    for p in found:
        kv, paths = format_size(p["room"]["kv_bytes"]), p["room"]["paths"]
        whole = f"{paths} of {p['max_path_tokens']:,} tokens"
        rows.append((p["name"], _format_missing(p), kv, whole, p["description"]))
    free = (f"{describe_count(c)}, {format_size(c.free_bytes)} free" for c, _ in place.cards)
    output.note("; ".join(free))
    columns = ("pair", "to pull", "KV", "whole paths", "description")
    output.print_table(columns, rows, "nothing fits")


@app.command(name="show")
def show(name: Annotated[str, Argument(metavar="PAIR")], as_json: Json = False) -> None:
    """Show one pair: its models, their revisions and folders, and its memory plan."""
    config = load_config()
    pair = find_pair(name, config)
    if as_json:
        output.print_json(_describe(pair, config))
        return
    output.say(f"{pair.name}: {pair.description}")
    if pair.aliases:
        output.say(f"  also called {', '.join(pair.aliases)}")
    for role, spec in pair.models.items():
        folder = locate_model(spec, config)
        revision = f" @ {spec.revision}" if spec.revision else ""
        if folder is not None and folder.parent.name == "snapshots":
            revision = f" @ {folder.name}"
        output.say(f"  {role}: {spec.source}{revision}")
        weights = "" if spec.weights_bytes is None else f", {format_size(spec.weights_bytes)}"
        quantized = "" if spec.quantization is None else f" as {spec.quantization}"
        output.say(f"    {spec.dtype}{quantized}, {spec.max_model_len} tokens{weights}")
        if spec.license is not None:
            output.say(f"    licence {spec.license}")
        missing = f"not on this machine: flashedge models pull {pair.name}"
        output.say(f"    {folder or missing}")
    if not pair.has_verifier:
        output.say("  verifier: none")
    output.say(f"  memory: {_describe_memory(pair, config)}")


@app.command(name="pull")
def pull(
    name: Name,
    source: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="FOLDER",
            help="Copy from a Hugging Face cache or from a model's own folder.",
        ),
    ] = None,
) -> None:
    """Download a pair's models from the Hugging Face hub, or copy them from a folder.

    A model keeps the commit of its first download. To get a newer one, remove it before.
    """
    config = load_config()
    for spec in _find_models(name, config):
        if is_folder(spec.source):
            output.note(f"{spec.source} is a folder on this machine: nothing to download")
        elif source is None:
            output.print_data(str(pull_from_hub(spec, config)))
        else:
            output.print_data(str(pull_from_folder(spec, source.expanduser(), config)))


@app.command(name="import")
def import_gguf(
    file: Annotated[Path, Argument(metavar="FILE.gguf", help="A chat model's file, in one part.")],
    name: Annotated[
        str | None, Option(metavar="NAME", help="The new pair's name; the file's if left out.")
    ] = None,
    verifier: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The pair's verifier, by its name in models.toml, or none: for chat and"
            " self-consistency.",
            show_default=USUAL_VERIFIER,
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        Option(metavar="FILE", help="A Jinja template in place of the file's own, if it has one."),
    ] = None,
) -> None:
    """Convert a GGUF file, as Ollama and LM Studio have them, and add it to your models as a pair.

    The weights are unpacked to bfloat16, some 2 GB for every billion of them.
    """
    config = load_config()
    known = read_tables(list_files(config))
    if verifier is not None and verifier not in known["verifiers"]:
        close = find_nearest(verifier, known["verifiers"])
        hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known['verifiers'])}"
        raise NotFound(f"there is no verifier {verifier!r}", hint=hint, param="verifier")
    from flashedge.cli.solve.command import read_text
    from flashedge.engine.gguf import open_gguf

    file = file.expanduser().resolve()  # a part of Ollama's store may be a link
    model = open_gguf(file, None if chat_template is None else read_text(chat_template))
    name = name or _name_import(file, model.metadata)
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ConfigError(f"a pair can't be named {name!r}", hint="add --name NAME", param="name")
    folder = _locate_imports(config) / name
    stands_in = verifier is None and _is_missing(name, config)
    is_taken = not stands_in and (name in load_pairs(config) or name in known["generators"])
    if is_taken or folder.exists():
        hint = f"add --name NAME, or type first: flashedge models rm {name}"
        raise ConfigError(f"there is a model {name!r} already", hint=hint, param="name")
    _check_room(folder, model.size_bytes)
    try:
        with _fill_folder(folder) as fresh:
            with show_bar("unpacking", len(model.tensors), unit="tensors") as report:
                model.write(fresh, report)
            check_checkpoint(fresh)
        try:
            pair_verifier = None if stands_in else verifier or USUAL_VERIFIER
            _add_import(name, folder, pair_verifier, model.metadata, config)
        except BaseException:
            shutil.rmtree(folder)
            raise
    except OSError as error:
        raise _translate(error, folder) from error
    output.note(f"imported {file.name} as the pair {name}: {format_size(model.size_bytes)}")
    if locate_model(find_pair(name, config).verifier, config) is None:
        output.note(f"its verifier is not on this machine: flashedge models pull {name}")
    output.note(f"serve it: flashedge up --pair {name}")
    output.print_data(str(folder))


def _name_import(file: Path, metadata: Mapping[str, Any]) -> str:
    """The file's name, or the model's own where Ollama's store has named the file by its hash."""
    named = metadata.get("general.name", "") if file.name.startswith("sha256") else file.stem
    return re.sub(r"[^\w.+]+", "-", str(named).lower()).strip("-.+")


def _is_missing(name: str, config: Config) -> bool:
    """Whether `name` is a known pair and its generator, whose files are not on this machine and
    which the user's file does not define, so that an imported file can stand in for them."""
    files = list_files(config)
    _, entry = read_tables(files)["pairs"].get(name, ("", {}))
    if entry.get("generator") != name or name in read_tables(files[1:])["generators"]:
        return False
    return locate_model(find_pair(name, config).generator, config) is None


def _add_import(
    name: str, folder: Path, verifier: str | None, metadata: Mapping[str, Any], config: Config
) -> None:
    """Add the generator in `folder` to the user's models.toml, and its pair unless `verifier` is
    None: a known pair gets the generator then."""
    template = metadata["tokenizer.chat_template"]
    length = min(metadata[f"{metadata['general.architecture']}.context_length"], _IMPORTED_LEN)
    generator = {"source": str(folder), "dtype": "bfloat16", "max_model_len": length}
    if "general.license" in metadata:
        generator["license"] = str(metadata["general.license"])
    if "<tool_call>" in template and "<function=" not in template:
        generator["tool_parser"] = "hermes"
    if "</think>" in template:
        generator |= {"thinking": True, "reasoning_parser": "deepseek_r1"}
    if "enable_thinking" in template:
        generator |= {
            "reasoning_parser": "qwen3",
            "chat_template_kwargs": {"enable_thinking": False},
        }
    pair = {
        "description": f"{metadata.get('general.name', name)}, imported",
        "generator": name,
        "verifier": verifier,
        "sampling": {"temperature": 0.8},
        "max_step_tokens": min(512, length // 4),
        "max_path_tokens": min(3072, length // 4 * 3),
        "system_prompt": "Please reason step by step, and put your final answer within \\boxed{}.",
    }

    def add(document: Any) -> None:
        document.setdefault("generators", {})[name] = generator
        if verifier is not None:
            document.setdefault("pairs", {})[name] = pair

    edit_file(config.config_dir / "models.toml", add)


@app.command(name="rm")
def rm(name: Name) -> None:
    """Remove a pair's models from FlashEdge's own cache, and an imported one's entries too."""
    config = load_config()
    for spec in _find_models(name, config):
        is_import = Path(spec.source).parent == _locate_imports(config)
        freed = None if is_folder(spec.source) and not is_import else remove(spec, config)
        if is_import:
            _remove_import(Path(spec.source).name, config)
        if freed is None:
            output.note(f"{spec.source}: not in FlashEdge's cache; nothing removed")
        else:
            output.note(f"removed {spec.source}, {format_size(freed)}")


def _remove_import(name: str, config: Config) -> None:
    """Remove the generator from the user's models.toml, and its pairs unless FlashEdge's own file
    has a generator of that name."""
    own = read_tables(list_files(config)[:1])["generators"]

    def remove_entries(document: Any) -> None:
        document.get("generators", {}).pop(name, None)
        pairs = {} if name in own else document.get("pairs", {})
        for each in [p for p, entry in pairs.items() if entry.get("generator") == name]:
            del pairs[each]

    edit_file(config.config_dir / "models.toml", remove_entries)


def _find_models(name: str, config: Config) -> tuple[ModelSpec, ...]:
    """The models of the pair `name`, or the one model whose source is `name`: a pair's, or the one
    of `clusters_model`. Raises NotFound."""
    pairs = load_pairs(config)
    if name in pairs:
        return tuple(pairs[name].models.values())
    models = {s.source: s for p in pairs.values() for s in p.models.values()}
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
    missing = {}
    for role, spec in (("generator", pair.generator), ("verifier", pair.verifier)):
        folder = locate_model(spec, config)
        entry[role]["folder"] = None if folder is None else str(folder)
        if folder is None:
            missing[spec.source] = spec.download_bytes
    entry["local"] = not missing
    sizes = [size for size in missing.values() if size is not None]
    entry["download_bytes"] = sum(sizes) if len(sizes) == len(missing) else None
    entry["is_bundled"] = is_bundled(pair)
    card, need = _find_card(pair, config)
    entry["needed_bytes"] = need and need.least_bytes
    entry["smallest_card"] = card and card.name
    if need is not None and sum(need.weights) < NO_CARD_BYTES:
        entry["smallest_card"] = "any"
    return entry


def _find_card(pair: Pair, config: Config) -> tuple[CardMemory | None, PairNeed | None]:
    """(the smallest of `SHOP_CARDS` that the pair fits, what it needs there). The card is None if
    all are too small. Both are None while the shape of a model is unknown."""
    for card in SHOP_CARDS:
        try:
            need = find_need(pair, config, card)
        except CheckpointError:
            return None, None
        if need.fits(card):
            return card, need
    return None, need


def _describe_memory(pair: Pair, config: Config) -> str:
    """The KV sizes that are set, or an estimate for the smallest card that the pair fits."""
    if pair.memory is not None:
        sizes = pair.memory.generator_kv_bytes, pair.memory.verifier_kv_bytes
        return f"{format_size(sizes[0])} + {format_size(sizes[1])} of KV, set in models.toml"
    card, need = _find_card(pair, config)
    if need is None:
        return "planned at the start; what it needs is known once the files are here"
    overhead = sum(engine.overhead for engine in need.engines)
    parts = f"weights {format_size(sum(need.weights))}, engines {format_size(overhead)} (estimate)"
    if card is None:
        return f"{parts}; fits no card of {SHOP_CARDS[-1].name}"
    return f"{parts}; an idle card of {card.name} leaves {format_size(need.sum_rooms(card))} for KV"


def pull_from_hub(spec: ModelSpec, config: Config) -> Path:
    """Download a model from the Hugging Face hub, and return its folder.

    Raises DaemonError within seconds when the hub can't be reached, CheckpointError, ConfigError.
    """
    hub = locate_hub(config)
    if not _is_hub_reachable():
        kept = find_snapshot(hub, spec.source, spec.revision)  # of an earlier download
        if kept is None:
            raise _explain_unreachable(spec.source)
        check_model(kept, spec)
        return kept
    _check_room(hub, spec.weights_bytes or 0)
    commit = find_commit(hub, spec.source, spec.revision)  # the same as before
    if not re.fullmatch(r"[0-9a-f]{40}", commit):  # none, or that of a copied folder
        commit = spec.revision or "main"
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            spec.source,
            revision=commit,
            cache_dir=hub,
            allow_patterns=_PATTERNS,
            ignore_patterns=_OTHER_FORMATS,
        )
    except hub_errors.GatedRepoError as error:
        told = f"{spec.source} has a licence that you must accept on the hub"
        hint = f"accept it at https://huggingface.co/{spec.source}, then type: hf auth login"
        raise CheckpointError(told, hint=hint) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.RevisionNotFoundError) as error:
        told = f"the hub has no {spec.source} at revision {spec.revision or 'main'}"
        raise CheckpointError(told) from error
    except OSError as error:
        raise _translate(error, hub) from error
    except Exception as error:
        raise _explain_unreachable(spec.source) from error
    check_model(Path(folder), spec)
    return Path(folder)


def pull_from_folder(spec: ModelSpec, source: Path, config: Config) -> Path:
    """Copy a model from a hub cache or a plain model folder, and return the copy's folder. A copy
    that fails leaves no part behind.

    Raises CheckpointError when `source` doesn't hold the model, the model is broken or a file can't
    be copied, and ConfigError when the disk has no room or the cache can't be changed.
    """
    found = _find_in_folder(spec, source)
    check_model(found, spec)
    hub = locate_hub(config)
    top = _locate(spec, hub)
    revision = spec.revision or "main"
    is_in_cache = found.parent.name == "snapshots"
    commit = found.name if is_in_cache else (revision if revision != "main" else "local")
    to = top / "snapshots" / commit
    try:
        if found.resolve() == to.resolve():
            return to
        _check_room(hub, sum(f.stat().st_size for f in found.iterdir() if f.is_file()))
        with _fill_folder(to) as fresh:
            shutil.copytree(found, fresh, symlinks=False, dirs_exist_ok=True)
        if revision != commit:
            ref = top / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, encoding="utf-8")
    except shutil.Error as error:
        raise CheckpointError(f"can't copy {found}: {error}") from error
    except OSError as error:
        raise _translate(error, hub) from error
    return to


def remove(spec: ModelSpec, config: Config) -> int | None:
    """Delete the model from FlashEdge's cache. Returns the bytes freed, or None if it wasn't there.

    Raises ConfigError.
    """
    top = _locate(spec, locate_hub(config))
    if not top.is_dir():
        return None
    freed = sum(f.lstat().st_size for f in top.rglob("*") if f.is_file() and not f.is_symlink())
    try:
        shutil.rmtree(top)
    except OSError as error:
        raise _translate(error, top) from error
    return freed


@contextmanager
def _fill_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to fill, which then takes the place of `folder`. Of what fails nothing is
    left."""
    fresh = folder.with_name(f".new-{uuid.uuid4().hex}")
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _locate_imports(config: Config) -> Path:
    return config.cache_dir / "imported"


def _locate(spec: ModelSpec, hub: Path) -> Path:
    """The folder of a model and its versions: an imported model's own, or in the cache `hub`."""
    return Path(spec.source) if is_folder(spec.source) else locate_source(hub, spec.source)


def _find_in_folder(spec: ModelSpec, source: Path) -> Path:
    if not source.is_dir():
        raise CheckpointError(f"there is no folder {source}")
    for hub in (source, source / "hub", source.parent):
        for revision in (spec.revision, None):
            if found := find_snapshot(hub, spec.source, revision):
                return found
    if (source / "config.json").is_file():
        return source
    name = _locate(spec, source).name
    raise CheckpointError(
        f"{source} does not hold {spec.source}",
        hint=f"it should hold {name}/snapshots/<revision>, or be the model's folder itself",
    )


def _check_room(hub: Path, needed_bytes: int) -> None:
    at = next(p for p in (hub, *hub.parents) if p.exists())
    free = shutil.disk_usage(at).free
    if free < needed_bytes + _SPARE_BYTES:
        raise ConfigError(
            f"not enough disk under {at}: {format_size(needed_bytes)} needed,"
            f" {format_size(free)} free",
            hint="free some space, or choose another disk: flashedge config set cache_dir FOLDER",
        )


def _translate(error: OSError, place: Path) -> ConfigError | DaemonError:
    """The error to raise for an OSError, which may be a fault of the disk or of the network."""
    if error.errno == errno.ENOSPC:
        return ConfigError(f"no space left under {place}", hint=_OTHER_CACHE)
    # Only errors of the disk name a file.
    if error.filename or error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        told = f"can't write {error.filename or place}: {error.strerror}"
        return ConfigError(told, hint=_OTHER_CACHE)
    return DaemonError(f"the Hugging Face hub can't be reached: {error}", hint=_OFFLINE)


def _explain_unreachable(source: str) -> DaemonError:
    return DaemonError(f"can't download {source}: the hub can't be reached", hint=_OFFLINE)


def _is_hub_reachable() -> bool:
    """Whether the hub answers one request. Its own client would retry for half a minute."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=5.0)
    except httpx.HTTPError:
        return False
    return True
