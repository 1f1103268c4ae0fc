"""One frozen configuration: explicit values, then FLASHEDGE_* variables, then the user's file.

The file is `config.toml` in the configuration folder. Its keys are the fields of `Config`; a field
`clusters_model` may also stand as `model` in a table `[clusters]`, one `scheduling_…` in
`[scheduling]`. Variables are FLASHEDGE_ and a field's name in capitals. FLASHEDGE_HOME moves the
state, cache and configuration folders under one folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from flashedge.errors import ConfigError

PREFIX = "FLASHEDGE_"
LOG_LEVELS = ("debug", "info", "warning", "error")
_SIZES = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_EMPTY: Mapping[str, object] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the daemon and its clients are set to.

    max_running: searches at once; queue_limit: runs that may wait; idle_timeout_s: the daemon
    stops after so long without work (None: never); *_kv_bytes: instead of the pair's memory plan
    (a file may say "512MiB"); max_num_seqs: sequences in one engine step; clusters_model: what
    groups open-ended answers, a folder or a hub name (None: likeness of words), clusters_threshold:
    least cosine of its vectors for two answers to be one; scheduling_prefix_order: paths of a
    level that share KV are handed to the engines together (false: as they come);
    scheduling_speculation: finished paths go on while others generate, where the engine can;
    scheduling_kv_split: the KV memory of both engines together is divided by what levels need, and
    moves with them where it can (false: as planned, half and half); scheduling_offload: the split
    may give all of it to each engine in turn, the other's KV waiting in host memory, where that is
    faster;
    scheduling_offload_to_file: it waits in a file even where memory is not short;
    scheduling_mapped_kv: on CUDA the KV tensors lie in memory that comes and goes, so that the
    split moves there too, if a trial of the card succeeds (off: no card has run it yet);
    scheduling_spill_bytes: host memory of each engine for KV that it evicts, CUDA alone;
    scheduling_early_scores: steps are scored as they come, while others of their level generate
    (not given: on CPU, where each engine has processors of its own);
    scheduling_score_once: equal paths of a run are scored by one pass (false: each by its own);
    scheduling_lookahead: what they finish is scored together with the step before (off: on the
    simulated engines it costs more than it saves).
    """

    host: str = "127.0.0.1"
    port: int = 8642
    api_key: str | None = dataclasses.field(default=None, repr=False)
    pair: str = "bundled"
    max_running: int = 2
    queue_limit: int = 16
    max_request_bytes: int = 1 << 20
    idle_timeout_s: float | None = None
    log_level: str = "info"
    threads_per_engine: int = 1
    generator_kv_bytes: int | None = None
    verifier_kv_bytes: int | None = None
    max_num_seqs: int = 256
    clusters_model: str | None = None
    clusters_threshold: float = 0.55
    scheduling_prefix_order: bool = True
    scheduling_speculation: bool = True
    scheduling_kv_split: bool = True
    scheduling_offload: bool = True
    scheduling_offload_to_file: bool = False
    scheduling_mapped_kv: bool = False
    scheduling_spill_bytes: int | None = None
    scheduling_early_scores: bool | None = None
    scheduling_score_once: bool = True
    scheduling_lookahead: bool = False
    state_dir: Path
    cache_dir: Path
    config_dir: Path

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.toml"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the daemon."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


_TYPES: Mapping[str, Any] = typing.get_type_hints(Config)
_MINIMUM: Mapping[str, float] = types.MappingProxyType(
    {
        "port": 0,
        "max_running": 1,
        "queue_limit": 0,
        "max_request_bytes": 1024,
        "idle_timeout_s": 1,
        "threads_per_engine": 1,
        "generator_kv_bytes": 1 << 20,
        "verifier_kv_bytes": 1 << 20,
        "max_num_seqs": 1,
        "scheduling_spill_bytes": 1 << 20,
        "clusters_threshold": 0,
    }
)
_MAXIMUM: Mapping[str, float] = types.MappingProxyType({"port": 65535, "clusters_threshold": 1})
_TABLES = ("clusters", "scheduling")
_TRUTHS = {"true": True, "false": False}
_WANTED = {
    Path: "a folder",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def load_config(
    overrides: Mapping[str, object] = _EMPTY, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration in force. An override of None counts as not given.

    Raises ConfigError naming the key, where it stands and the nearest known key. A variable that
    starts with FLASHEDGE_ and is near no key is somebody else's and is left alone.
    """
    env = os.environ if environ is None else environ
    named = {k.removeprefix(PREFIX).lower(): v for k, v in env.items() if k.startswith(PREFIX)}
    explicit = {k: v for k, v in overrides.items() if v is not None}
    folders = _folders(named.pop("home", None))
    for key in named:
        close = nearest(key, _TYPES, cutoff=0.75)
        if key not in _TYPES and close:
            raise ConfigError(
                f"unknown variable {PREFIX}{key.upper()}",
                hint=f"did you mean {PREFIX}{close.upper()}?",
            )

    values: dict[str, Any] = dict(folders)
    config_dir = explicit.get("config_dir", named.get("config_dir", folders["config_dir"]))
    file = _parse("config_dir", config_dir, "the command") / "config.toml"
    for source, found in (
        (str(file), _flat(_read(file))),
        ("the environment", {k: v for k, v in named.items() if k in _TYPES and v != ""}),
        ("the command", explicit),
    ):
        for key, value in found.items():
            if key not in _TYPES or (key == "config_dir" and source == str(file)):
                raise unknown_key(key, source, [k for k in _TYPES if k != "config_dir"])
            values[key] = _parse(key, value, source)
    return Config(**values)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that `name` most likely means."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def unknown_key(key: str, source: str, known: Iterable[str]) -> ConfigError:
    names = list(known)
    close = nearest(key, names)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(sorted(names))}"
    return ConfigError(f"unknown key {key!r} in {source}", hint=hint, param=key)


def read_toml(file: Path) -> dict[str, Any]:
    """Raises ConfigError when the file can't be read or is no TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    return read_toml(file) if file.exists() else {}


def _flat(file: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `file`, those of a known table behind the table's name."""
    found: dict[str, Any] = {}
    for key, value in file.items():
        if key in _TABLES and isinstance(value, dict):
            found.update({f"{key}_{name}": inner for name, inner in value.items()})
        else:
            found[key] = value
    return found


def _folders(home: str | None) -> dict[str, Path]:
    if home:
        base = Path(home).expanduser().absolute()
        return {f"{kind}_dir": base / kind for kind in ("state", "cache", "config")}
    return {
        "state_dir": Path(platformdirs.user_state_dir("flashedge")),
        "cache_dir": Path(platformdirs.user_cache_dir("flashedge")),
        "config_dir": Path(platformdirs.user_config_dir("flashedge")),
    }


def _parse(key: str, value: object, source: str) -> Any:
    """`value` as the type of the field `key`, checked. Raises ConfigError."""
    hint = _TYPES[key]
    kinds = [k for k in typing.get_args(hint) if k is not type(None)] or [hint]
    kind = kinds[0]
    parsed: Any = None
    if kind is Path and isinstance(value, str | Path) and str(value):
        parsed = Path(value).expanduser().absolute()
    elif kind is str and isinstance(value, str):
        parsed = value
    elif kind is bool:
        parsed = value if isinstance(value, bool) else _TRUTHS.get(str(value).strip().lower())
    elif kind is int and not isinstance(value, bool):
        parsed = _integer(value, sizes=key.endswith("_bytes"))
    elif kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        parsed = _number(value)
    wanted = _WANTED[kind]
    if parsed is None:
        raise ConfigError(f"{key} is {value!r} in {source}; it must be {wanted}", param=key)
    if key in _MINIMUM and not parsed >= _MINIMUM[key]:
        raise ConfigError(
            f"{key} is {value!r} in {source}; it must be at least {_MINIMUM[key]:g}", param=key
        )
    if key in _MAXIMUM and not parsed <= _MAXIMUM[key]:
        raise ConfigError(
            f"{key} is {value!r} in {source}; it must be at most {_MAXIMUM[key]:g}", param=key
        )
    if key == "log_level" and parsed not in LOG_LEVELS:
        raise ConfigError(
            f"log_level is {value!r} in {source}; it must be one of {', '.join(LOG_LEVELS)}",
            param=key,
        )
    return parsed


def _integer(value: object, *, sizes: bool) -> int | None:
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    text = value.strip().lower().replace("_", "")
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    if (unit and not sizes) or unit not in _SIZES:
        return None
    try:
        return int(digits) * _SIZES[unit]
    except ValueError:
        return None


def _number(value: int | float | str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None
