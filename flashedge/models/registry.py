"""models.toml: the generators, verifiers and pairs that FlashEdge knows.

The package ships one; the user's own, in the configuration folder, adds to it and replaces entries
of the same name.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flashedge.config import Config, build_key_error, find_nearest, read_toml
from flashedge.errors import ConfigError, NotFound
from flashedge.files.versions import FileVersion
from flashedge.models.specs import (
    ONLINE_METHODS,
    VERIFIER_FAMILIES,
    EmbedderSpec,
    ModelSpec,
    Pair,
    VerifierSpec,
    find_fault,
)
from flashedge.sizes import parse_size
from flashedge.types import JUDGED, MAX_STEP_ENTROPY, STEP_RULES

PACKAGE = Path(__file__).parents[1]
BUNDLED = PACKAGE / "bundled"
_CHOICES = {
    "dtype": ("float32", "bfloat16", "float16"),
    "family": tuple(VERIFIER_FAMILIES),
    "quantization": ONLINE_METHODS,
    "step_rule": STEP_RULES,
    "judge": JUDGED,
    "score_at": ("tag", "before_tag"),
}
_RANGES = {"step_entropy": (0, MAX_STEP_ENTROPY), "temperature": (0, 2), "top_p": (0, 1)}
"""Least and largest value, as in requests. top_p must be above 0, since 0 would leave no token."""
_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
LATEST = "latest"
"""What Ollama's users write behind a name and a colon. There is one model of each name here."""
T = TypeVar("T")


class Pairs(Mapping[str, Pair]):
    """Pairs by name, and by what else their users call them: an alias that is no pair's own name,
    with other capitals, or with ":latest" behind."""

    def __init__(self, pairs: Mapping[str, Pair]) -> None:
        self._pairs, self._found = pairs, {name.lower(): pair for name, pair in pairs.items()}
        for pair in pairs.values():
            for alias in pair.aliases:
                self._found.setdefault(alias.lower(), pair)

    def __getitem__(self, name: str) -> Pair:
        own = self._pairs.get(name)  # names of two pairs may differ in their capitals alone
        return own or self._found[name.lower().removesuffix(f":{LATEST}")]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


def split_name(name: str) -> tuple[str, str | None]:
    """Split a model's name into a pair and a search, without ":latest". None if there is no colon
    besides."""
    pair, *parts = name.split(":")
    if parts and parts[0].lower() == LATEST:
        del parts[0]
    return pair, ":".join(parts) if parts else None


def load_pairs(config: Config) -> Mapping[str, Pair]:
    """All pairs by name, parsed again when a file changed. Raises ConfigError naming the key."""
    versions = (FileVersion.find(file) for file in list_files(config))
    return parse_pairs(tuple(version for version in versions if version is not None))


@functools.lru_cache(maxsize=8)
def parse_pairs(versions: tuple[FileVersion, ...]) -> Mapping[str, Pair]:
    """Parse the pairs of some files. The pairs are cached, since parsing takes some 40 ms. Raises
    ConfigError."""
    tables = read_tables([version.path for version in versions])
    models = {
        kind: {
            name: _build_model(spec, entry, where) for name, (where, entry) in tables[kind].items()
        }
        for kind, spec in (("generators", ModelSpec), ("verifiers", VerifierSpec))
    }
    return Pairs({n: _build_pair(n, where, e, models) for n, (where, e) in tables["pairs"].items()})


def read_tables(files: Iterable[Path]) -> Mapping[str, dict[str, tuple[str, dict[str, Any]]]]:
    """The entries of generators, verifiers and pairs by name, each with where it stands. An entry
    replaces the one of that name in an earlier file. Raises ConfigError."""
    tables: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
        kind: {} for kind in ("generators", "verifiers", "pairs")
    }
    for file in files:
        for kind, entries in read_toml(file).items():
            if kind not in tables:
                raise build_key_error(kind, str(file), tables)
            for name, entry in _check_table(entries, f"[{kind}] of {file}").items():
                where = f'[{kind}."{name}"] of {file}'
                tables[kind][name] = (where, _check_table(entry, where))
    return tables


def find_pair(name: str, config: Config) -> Pair:
    """Find a pair. Raises NotFound with the nearest name, ConfigError for a bad models.toml."""
    pairs = load_pairs(config)
    if name in pairs:
        return pairs[name]
    close = find_nearest(name, pairs)
    hint = f"did you mean {close!r}?" if close else "list them: flashedge models ls"
    raise NotFound(f"there is no pair {name!r}", hint=hint, param="pair")


def name_pair(config: Config) -> Config:
    """Let the setting `pair` be the pair's own name, not an alias. An unknown name stays."""
    pair = load_pairs(config).get(config.pair)
    return config if pair is None else dataclasses.replace(config, pair=pair.name)


def find_embedder(config: Config) -> EmbedderSpec | None:
    """The model of the setting `clusters_model`, if set. Its `max_model_len` is unused."""
    source = config.clusters_model
    return EmbedderSpec(source=source, dtype="float32", max_model_len=0) if source else None


def is_bundled(pair: Pair) -> bool:
    sources = (Path(pair.generator.source), Path(pair.verifier.source))
    return all(source.is_relative_to(BUNDLED) for source in sources)


def list_files(config: Config) -> list[Path]:
    """The package's models.toml (in a checkout a link to the one at its top), then the user's."""
    own = PACKAGE / "models.toml"
    if not own.exists():
        raise ConfigError(f"models.toml is missing in {PACKAGE}", hint="install FlashEdge again")
    user = config.config_dir / "models.toml"
    return [own, user] if user.exists() else [own]


def _build_model(kind: type[T], entry: Mapping[str, Any], where: str) -> T:
    """The model of an entry. `bundled:` in its source stands for the folder of bundled models."""
    fields = dict(entry)
    source = entry.get("source")
    if isinstance(source, str) and source.startswith("bundled:"):
        fields["source"] = str(BUNDLED / source.removeprefix("bundled:"))
    if fault := find_fault(entry.get("chat_template_kwargs", {})):
        raise ConfigError(f"{where}: chat_template_kwargs {fault}", param="chat_template_kwargs")
    return _build(kind, fields, where)


def _build_pair(
    name: str, where: str, entry: dict[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> Pair:
    if any(":" in str(each) for each in (name, *entry.get("aliases", ()))):
        raise ConfigError(f"{where}: a pair's name can't hold ':' (it separates a strategy)")
    options = _check_table(entry.get("options", {}), f"{where}, options")
    for strategy, values in options.items():
        _check_table(values, f"{where}, options.{strategy}")
    fields: dict[str, Any] = {"sampling": {}, **entry, "name": name, "options": options}
    for role, kind in (("generator", "generators"), ("verifier", "verifiers")):
        if role in entry:
            model = str(entry[role])
            if model not in models[kind]:
                error = build_key_error(model, f"{where}, {role}", models[kind])
                error.hint = f"{error.hint}; to keep another, add its entry to [{kind}]"
                raise error
            fields[role] = models[kind][model]
    return _build(Pair, fields, where)


def _build(kind: type[T], entry: Mapping[str, Any], where: str) -> T:
    """Build the dataclass `kind`, and those in its fields, from a table. Raises ConfigError."""
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    for key in entry:
        if key not in fields:
            raise build_key_error(key, where, fields)
    needed = (n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING)
    missing = [name for name in needed if name not in entry]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing", param=missing[0])
    return kind(**{k: _parse_value(k, hints[k], v, where) for k, v in entry.items()})


def _parse_value(key: str, hint: Any, value: object, where: str) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint) or (hint,)
    kind, inner = args[0], f"{where}, {key}"
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not isinstance(value, kind):
        if origin is not tuple:
            return _build(kind, _check_table(value, inner), inner)
        if not isinstance(value, list):
            raise ConfigError(f"{inner} must be a list of tables")
        return tuple(_build(kind, _check_table(table, inner), inner) for table in value)
    if origin is tuple:  # of strings
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigError(f"{inner} must be a list of strings", param=key)
        return tuple(value)
    kinds = (dict,) if origin is Mapping else args
    expected = _TYPE_NAMES.get(kinds[0], "a table")
    if key.endswith("_bytes"):
        expected = 'a size such as "512MiB"'
        if isinstance(value, str) and (size := parse_size(value)) is not None:
            value = size
    if float in kinds and type(value) is int:
        value = float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be {expected}", param=key)
    known = _CHOICES.get(key)
    if known and value not in known:
        raise ConfigError(f"{where}: {key} is {value!r}; known: {', '.join(known)}", param=key)
    if key in _RANGES and isinstance(value, float):
        least, most = _RANGES[key]
        if not least <= value <= most or (key == "top_p" and value == 0):
            limits = f"{'(' if key == 'top_p' else '['}{least}, {most:g}]"
            raise ConfigError(f"{where}: {key} is {value}; it must be in {limits}", param=key)
    smallest = 0 if key == "top_k" else 1
    if type(value) is int and value < smallest:
        raise ConfigError(f"{where}: {key} is {value}; it must be at least {smallest}", param=key)
    return value


def _check_table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table")
    return value
