"""models.toml: which generators, verifiers and pairs there are, and where their folders lie.

What a checkpoint folder must hold is in `flashedge.models.checkpoints`.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flashedge.config import Config, nearest, read_toml, unknown_key
from flashedge.errors import CheckpointError, ConfigError, NotFound
from flashedge.models.checkpoints import VERIFIER_FAMILIES, check_checkpoint, check_embedder
from flashedge.types import Sampling

PACKAGE = Path(__file__).parents[1]
BUNDLED = PACKAGE / "bundled"
ENGINE_OVERHEAD_BYTES = round(1.2 * 2**30)  # what an engine process takes beyond weights and KV
RESERVED_BYTES = 1 << 29  # driver and display
DTYPES = ("float32", "bfloat16", "float16")
_SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What of a model's shape decides the size of its KV cache, as its config.json has it."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A checkpoint of the same model that weighs less. method: as its name says it (AWQ, ...)."""

    source: str
    method: str
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model. source: a folder or a hub id; max_model_len: tokens of prompt and path;
    weights_bytes, architecture: what is known of it before its files are here; quantized: what
    could stand in for it on a smaller card, largest first."""

    source: str
    revision: str | None = None
    dtype: str
    max_model_len: int
    weights_bytes: int | None = None
    architecture: Architecture | None = None
    quantized: tuple[Quantized, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec(ModelSpec):
    """A process reward model. step_token: the token whose output is a step's score; good_token
    and bad_token: the two labels of a step-tag PRM, as in its vocabulary."""

    family: str
    step_token: str | None = None
    good_token: str | None = None
    bad_token: str | None = None
    system_prompt: str | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """The family's options that are set."""
        names = ("step_token", "good_token", "bad_token", "system_prompt")
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens that the verifier's vocabulary must hold."""
        found = (self.step_token, self.good_token, self.bad_token)
        return tuple(t for t in found if t is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSpec(ModelSpec):
    """A sentence-embedding model, which groups open-ended answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """KV budgets on a device of `total_bytes`. fits: False says that the pair does not fit it."""

    generator_kv_bytes: int
    verifier_kv_bytes: int
    total_bytes: int
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A generator and a verifier that serve together, with defaults for a run.

    options: by strategy, its own options (`--set`) that a request leaves out.
    """

    name: str
    description: str
    generator: ModelSpec
    verifier: VerifierSpec
    memory: MemoryPlan
    sampling: Sampling
    max_step_tokens: int
    max_path_tokens: int
    system_prompt: str | None = None
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def needed_bytes(self) -> int | None:
        """Memory that the plan takes; None where a model's weights aren't counted."""
        weights = (self.generator.weights_bytes, self.verifier.weights_bytes)
        if weights[0] is None or weights[1] is None:
            return None
        kv = self.memory.generator_kv_bytes + self.memory.verifier_kv_bytes
        return weights[0] + weights[1] + kv + 2 * ENGINE_OVERHEAD_BYTES + RESERVED_BYTES


def load_pairs(config: Config) -> Mapping[str, Pair]:
    """The package's pairs and the user's. Raises ConfigError naming file, table and key."""
    tables: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
        kind: {} for kind in ("generators", "verifiers", "pairs")
    }
    for file in _files(config):
        for kind, entries in read_toml(file).items():
            if kind not in tables:
                raise unknown_key(kind, str(file), tables)
            for name, entry in _table(entries, f"[{kind}] of {file}").items():
                where = f'[{kind}."{name}"] of {file}'
                tables[kind][name] = (where, _table(entry, where))
    models = {
        kind: {
            name: _make(spec, _shaped(_sourced(entry), where), where)
            for name, (where, entry) in tables[kind].items()
        }
        for kind, spec in (("generators", ModelSpec), ("verifiers", VerifierSpec))
    }
    return {n: _pair(n, where, e, models) for n, (where, e) in tables["pairs"].items()}


def find_pair(name: str, config: Config) -> Pair:
    """Raises NotFound with the nearest name, ConfigError on a bad models.toml."""
    pairs = load_pairs(config)
    if name in pairs:
        return pairs[name]
    close = nearest(name, pairs)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(pairs)}"
    raise NotFound(f"there is no pair {name!r}", hint=hint, param="pair")


def find_embedder(config: Config) -> EmbedderSpec | None:
    """The model that `[clusters] model` names, if it names one. Its length is its own affair."""
    source = config.clusters_model
    return EmbedderSpec(source=source, dtype="float32", max_model_len=0) if source else None


def hub_folder(config: Config) -> Path:
    """Where `models pull` puts models, in the hub's own layout."""
    return config.cache_dir / "hub"


def snapshot(hub: Path, source: str, revision: str | None) -> Path | None:
    """The folder of `source` in a hub cache, if it is there."""
    top = hub / f"models--{source.replace('/', '--')}"
    wanted = revision or "main"
    ref = top / "refs" / wanted
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
    found = top / "snapshots" / commit
    return found if (found / "config.json").is_file() else None


def is_folder(source: str) -> bool:
    """Whether `source` names a folder rather than a model of the hub."""
    return source.startswith(("/", "./", "../", "~"))


def locate(spec: ModelSpec, config: Config) -> Path | None:
    """The model's folder on this machine, unchecked: FlashEdge's cache, then Hugging Face's."""
    if is_folder(spec.source):
        folder = Path(spec.source).expanduser()
        return folder if folder.is_dir() else None
    for hub in (hub_folder(config), _users_hub()):
        found = snapshot(hub, spec.source, spec.revision)
        if found:
            return found
    return None


def resolve_model(spec: ModelSpec, config: Config) -> Path:
    """The model's folder, checked. Raises CheckpointError naming what is missing."""
    folder = locate(spec, config)
    if folder is None:
        if is_folder(spec.source):
            raise CheckpointError(f"there is no model folder {spec.source}")
        hint = f"flashedge models pull {spec.source}"
        if Path(spec.source).is_dir():
            hint = f"for the folder of that name write ./{spec.source}"
        raise CheckpointError(f"{spec.source} is not on this machine", hint=hint)
    check_model(folder, spec)
    return folder


def check_model(folder: Path, spec: ModelSpec) -> None:
    """Raises CheckpointError unless `folder` holds what `spec` describes."""
    limit = spec.max_model_len
    if isinstance(spec, EmbedderSpec):
        check_embedder(folder)
    elif isinstance(spec, VerifierSpec):
        check_checkpoint(
            folder, "verifier", family=spec.family, tokens=spec.tokens, max_model_len=limit
        )
    else:
        check_checkpoint(folder, "generator", max_model_len=limit)


def _users_hub() -> Path:
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def _files(config: Config) -> list[Path]:
    """The package's models.toml (in a checkout a link to the one at its top), then the user's."""
    own = PACKAGE / "models.toml"
    if not own.exists():
        raise ConfigError(f"models.toml is missing in {PACKAGE}", hint="install FlashEdge again")
    user = config.config_dir / "models.toml"
    return [own, user] if user.exists() else [own]


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table")
    return value


def _sourced(entry: dict[str, Any]) -> dict[str, Any]:
    source = entry.get("source")
    if isinstance(source, str) and source.startswith("bundled:"):
        return {**entry, "source": str(BUNDLED / source.removeprefix("bundled:"))}
    return entry


def _shaped(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """The entry with its inner tables made."""
    made = dict(entry)
    if "architecture" in entry:
        at = f"{where}, architecture"
        made["architecture"] = _make(Architecture, _table(entry["architecture"], at), at)
    if "quantized" in entry:
        at, found = f"{where}, quantized", entry["quantized"]
        if not isinstance(found, list):
            raise ConfigError(f"{at} must be a list of tables")
        made["quantized"] = tuple(_make(Quantized, _table(one, at), at) for one in found)
    return made


def _pair(
    name: str, where: str, entry: dict[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> Pair:
    if ":" in name:
        raise ConfigError(f"{where}: a pair's name can't hold ':' (it separates a strategy)")
    options = _table(entry.get("options", {}), f"{where}, options")
    for strategy, values in options.items():
        _table(values, f"{where}, options.{strategy}")
    own = {key: value for key, value in entry.items() if key != "options"}
    filled: dict[str, Any] = {"sampling": {}, **own, "name": name}
    for role, kind in (("generator", "generators"), ("verifier", "verifiers")):
        used = entry.get(role)
        if role in entry and used not in models[kind]:
            raise unknown_key(str(used), f"{where}, {role}", models[kind])
        if role in entry:
            filled[role] = models[kind][str(used)]
    for key, spec in (("memory", MemoryPlan), ("sampling", Sampling)):
        if key in filled:
            filled[key] = _make(spec, _table(filled[key], f"{where}, {key}"), f"{where}, {key}")
    return dataclasses.replace(_make(Pair, filled, where), options=options)


def _make(kind: type[T], entry: Mapping[str, Any], where: str) -> T:
    """The dataclass `kind` from a TOML table. Raises ConfigError."""
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    for key in entry:
        if key not in fields:
            raise unknown_key(key, where, fields)
    needed = (n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING)
    missing = [name for name in needed if name not in entry]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing", param=missing[0])
    return kind(**{k: _value(k, hints[k], v, where) for k, v in entry.items()})


def _value(key: str, hint: Any, value: object, where: str) -> object:
    kinds = (tuple,) if typing.get_origin(hint) is tuple else typing.get_args(hint) or (hint,)
    if key.endswith("_bytes") and isinstance(value, str):
        value = _size(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConfigError(f"{where}: {key} is {value!r}, which is no {_name(kinds[0])}", param=key)
    known = {"dtype": DTYPES, "family": tuple(VERIFIER_FAMILIES)}.get(key)
    if known and value not in known:
        raise ConfigError(f"{where}: {key} is {value!r}; known: {', '.join(known)}", param=key)
    least = 0 if key == "top_k" else 1
    if isinstance(value, int) and not isinstance(value, bool) and value < least:
        raise ConfigError(f"{where}: {key} is {value}; it must be positive", param=key)
    return value


def _size(text: str) -> object:
    for unit, factor in _SIZES.items():
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.isdigit():
            return int(number) * factor
    return text


def _name(kind: type) -> str:
    return {str: "string", int: "integer", float: "number", bool: "true or false"}.get(
        kind, kind.__name__
    )
