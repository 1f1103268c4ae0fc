"""One frozen configuration: explicit values, then FLASHEDGE_* variables, then the user's file.

The file is `config.toml` in the configuration folder. Its keys are the names of the fields of
`Config`; the environment variable of a field is FLASHEDGE_ and its name in capitals.
FLASHEDGE_HOME puts the state, cache and configuration folders under one folder.
"""

import dataclasses
import difflib
import ipaddress
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from flashedge.config_field import PREFIX, PerEngine, Setting, describe_field, setting
from flashedge.errors import ConfigError
from flashedge.optimizations import Features
from flashedge.types import POLICY_NAMES, USUAL_POLICY

_EMPTY: Mapping[str, object] = types.MappingProxyType({})
_FOLDERS = ("state", "cache", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of the daemon and its clients. `list_settings` describes each of them."""

    host: str = setting("127.0.0.1", "Address that the daemon listens on.")
    port: int = setting(
        8642, "Port that the daemon listens on; 0 takes any free one.", at_least=0, at_most=65535
    )
    api_key: str | None = setting(
        None,
        "Key that API requests must carry. Required when other machines can reach the host.",
        is_secret=True,
    )
    pair: str = setting("bundled", "Generator and verifier that the daemon serves.")
    max_running: int = setting(
        8,
        "Most searches of a pair that run at the same time. Fewer run where the memory has no room "
        "for more or the engines would gain nothing.",
        at_least=1,
    )
    queue_limit: int = setting(
        16, "Runs of a pair that may wait for their turn; further ones are refused.", at_least=0
    )
    max_request_bytes: int = setting(
        32 << 20,
        "Largest request body that the API accepts. Agents send whole sessions. A session that is "
        "too long for the model is refused with its number of tokens, and the agent shortens it.",
        at_least=1024,
    )
    allowed_origins: tuple[str, ...] | None = setting(
        None,
        "Origins of web pages and apps that may call the API from a browser, such as "
        "app://obsidian.md or http://localhost:3000. Not set: none.",
    )
    idle_timeout_s: float | None = setting(
        None,
        "Stop the daemon after this many seconds without a request. Not set: never.",
        at_least=1,
    )
    keep_alive_s: float = setting(
        3600.0,
        "Unload the engines after this many seconds without a request, and give their memory back. "
        "The next request loads them. Negative: never.",
    )
    loaded_pairs: int = setting(
        1,
        "Pairs that are loaded at once. A request for another one unloads the least recently used "
        "one. Where more than one fits a card, both KV sizes must be set.",
        at_least=1,
    )
    keep_runs_days: float | None = setting(
        None,
        "Remove stored runs this many days after their end. Not set: keep them at any age.",
        at_least=0,
    )
    keep_runs_gib: float = setting(
        10.0, "Most GiB that all stored runs may take. The oldest are removed first.", at_least=0
    )
    keep_chats: int = setting(
        200,
        "Most conversations of `flashedge chat` to keep, the last used ones. 0: none is stored.",
        at_least=0,
    )
    log_level: str = setting(
        "info",
        "Least severe messages that the daemon logs.",
        choices=("debug", "info", "warning", "error"),
    )
    threads_per_engine: int = setting(1, "CPU threads of each engine.", at_least=1)
    engine_hang_s: float = setting(
        60.0,
        "Kill and restart an engine that gives no sign of life for this many seconds. A step of "
        "many tokens of a large model may take longer.",
        at_least=1,
    )
    kv_bytes: PerEngine[int | None] = setting(
        PerEngine(None, None),
        "KV cache memory of the generator and of the verifier, on each of their cards: 8GiB,4GiB, "
        "or one size for each. auto, or not set: planned from the free memory.",
        at_least=1 << 20,
    )
    devices: PerEngine[tuple[str, ...] | None] = setting(
        PerEngine(None, None),
        "Cards of the generator and of the verifier: 0,1, or one entry for both; 0+1 spreads an "
        "engine over two. Numbers count the visible cards. auto, or not set: the first one. No "
        "effect on a CPU.",
    )
    max_num_seqs: int | None = setting(
        None,
        "Most sequences in one step of an engine. Not set: 256 on a CPU; 128 on a card, or fewer "
        "where the pair does not fit otherwise.",
        at_least=1,
    )
    batch_invariant: bool = setting(
        False,
        "On CUDA, compute by kernels whose results do not depend on what else is in the batch, so "
        "that the same request gives the same tree. They are slower and need a card of compute "
        "capability 8.0 or later. No effect on a CPU.",
    )
    deterministic_searches: bool = setting(
        False,
        "Make searches deterministic by default: the same tokens, scores and answer under any "
        "load, even on kernels whose results depend on the batch.",
    )
    clusters_model: str | None = setting(
        None,
        "Sentence-embedding model that groups open-ended answers: a folder or a Hugging Face id. "
        "Not set: answers are compared by their words.",
    )
    clusters_threshold: float = setting(
        0.55,
        "Least cosine similarity at which two open-ended answers count as the same.",
        at_least=0,
        at_most=1,
    )
    scheduling_policy: str = setting(
        USUAL_POLICY,
        "Which of the waiting programs goes next: by expected work (shortest), by expected work "
        "and its tail risk (tie), or by arrival (fcfs; gang: all requests of a program together).",
        choices=POLICY_NAMES,
    )
    scheduling_escalate_s: float = setting(
        60.0,
        "A program that got no token for this many seconds goes before all others.",
        at_least=0,
    )
    scheduling_boost: str = setting(
        "asked",
        "Which MCTS runs may have more rollouts in flight where that gets more done: those that "
        "ask for it (asked), all, or none (off). What such a run explores depends on the load.",
        choices=("off", "asked", "all"),
    )
    scheduling_lengths: str = setting(
        "history",
        "What predicts how long outputs will be. history: the runs before, learned as they end. "
        "off: assume that every request takes all of its max_tokens.",
        choices=("history", "off"),
    )
    features: Features = setting(
        Features(),
        "What to switch on or off for a comparison or a trial: speculation=off,lookahead=on. "
        "`flashedge config show features` lists what there is.",
    )
    state_dir: Path = setting(MISSING, "Folder of the runs, the logs and the daemon's lock.")
    cache_dir: Path = setting(MISSING, "Folder of the downloaded models.")
    config_dir: Path = setting(MISSING, "Folder of config.toml and models.toml.")

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


class SettingValue(NamedTuple):
    """A setting's value and where it comes from, such as "the environment"."""

    value: Any
    source: str


def list_settings() -> tuple[Setting, ...]:
    return tuple(_SETTINGS.values())


def load_config(
    overrides: Mapping[str, object] = _EMPTY, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration in force. An override of None and an empty variable count as not given.

    Raises ConfigError naming the key, where it stands and the nearest known key. A variable that
    begins with FLASHEDGE_ and resembles no key belongs to another program and is ignored.
    """
    found = trace_settings(overrides, environ)
    return Config(**{name: value for name, (value, _) in found.items()})


def trace_settings(
    overrides: Mapping[str, object] = _EMPTY, environ: Mapping[str, str] | None = None
) -> Mapping[str, SettingValue]:
    """The value of every setting and its source, by name. Raises ConfigError like `load_config`."""
    env = os.environ if environ is None else environ
    named = {k.removeprefix(PREFIX).lower(): v for k, v in env.items() if k.startswith(PREFIX)}
    explicit = {k: v for k, v in overrides.items() if v is not None}
    home = named.pop("home", None)
    usual = platformdirs.PlatformDirs("flashedge")
    folders = {f"{kind}_dir": Path(getattr(usual, f"user_{kind}_dir")) for kind in _FOLDERS}
    if home:
        top = _SETTINGS["state_dir"].parse(home, f"{PREFIX}HOME")
        folders = {f"{kind}_dir": top / kind for kind in _FOLDERS}
    for key in named.keys() - _SETTINGS.keys():
        if close := find_nearest(key, _SETTINGS, cutoff=0.75):
            raise ConfigError(
                f"unknown variable {PREFIX}{key.upper()}",
                hint=f"did you mean {PREFIX}{close.upper()}?",
            )
    found = {s.name: SettingValue(s.default, "the defaults") for s in list_settings()}
    base = "the environment" if home else "the defaults"
    found.update({key: SettingValue(folder, base) for key, folder in folders.items()})
    config_dir = explicit.get("config_dir", named.get("config_dir") or folders["config_dir"])
    place = "the command" if "config_dir" in explicit else "the environment"
    file = _SETTINGS["config_dir"].parse(config_dir, place) / "config.toml"
    for source, values in (
        (str(file), read_toml(file)),
        ("the environment", {k: v for k, v in named.items() if k in _SETTINGS and v != ""}),
        ("the command", explicit),
    ):
        for key, value in values.items():
            if key not in _SETTINGS or (source == str(file) and not _SETTINGS[key].is_in_file):
                raise build_key_error(
                    key, source, [s.name for s in list_settings() if s.is_in_file]
                )
            parsed = _SETTINGS[key].parse(value, source, onto=found[key].value)
            found[key] = SettingValue(parsed, source)
    return found


def check_exposure(config: Config) -> None:
    """Raises ConfigError when other machines could reach the daemon without a key."""
    if not config.is_loopback and not config.api_key:
        raise ConfigError(
            f"other machines can reach the host {config.host}, and no API key is set",
            hint="set FLASHEDGE_API_KEY, or serve this machine only: --host 127.0.0.1",
            param="api_key",
        )


def find_nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name most like `name`, or None. cutoff: the least ratio of `difflib`, in [0, 1]."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def build_key_error(key: str, source: str, known: Iterable[str]) -> ConfigError:
    """The error for a key of `source` that is not in `known`."""
    names = list(known)
    close = find_nearest(key, names)
    hint = f"did you mean {close!r}?" if close else f"known: {', '.join(sorted(names))}"
    return ConfigError(f"unknown key {key!r} in {source}", hint=hint, param=key)


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file, none if it is missing. Raises ConfigError for any other bad file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


_HINTS = typing.get_type_hints(Config)
_SETTINGS: Mapping[str, Setting] = types.MappingProxyType(
    {field.name: describe_field(field, _HINTS[field.name]) for field in dataclasses.fields(Config)}
)
