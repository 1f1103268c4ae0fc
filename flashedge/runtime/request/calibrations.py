"""Calibrations on disk, and which early exit a run gets: its request's, a calibration's, the usual.

`calibrations.json` lies beside the user's config.toml: `flashedge calibrate` writes it, the daemon
reads it whenever a run asks for early exit and does not say how.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flashedge.certainty.rules import Rule
from flashedge.config import Config
from flashedge.errors import ConfigError, RequestError
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec

REQUEST, CALIBRATION, DEFAULTS = "request", "calibration", "defaults"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found best for a strategy on a pair.

    fingerprint: of the pair then (see `fingerprint`); settings: of the runs (see `settings_of`);
    rule: None where full compute is best; provenance: date, problems, n, accuracy and tokens
    before and after, plain JSON values.
    """

    pair: str
    strategy: str
    fingerprint: str
    settings: Mapping[str, Any]
    rule: Rule | None
    provenance: Mapping[str, Any]

    @property
    def date(self) -> str:
        return str(self.provenance.get("date", "an unknown date"))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The inverse. Raises KeyError, TypeError, ValueError or RequestError."""
        fields, rule = dict(data), data["rule"]
        if rule is not None:
            thresholds = tuple((str(name), float(v)) for name, v in rule["thresholds"])
            curve = tuple((float(at), int(need)) for at, need in rule["curve"])
            rule = Rule(**{**rule, "thresholds": thresholds, "curve": curve})
            if not thresholds:
                raise ValueError("a rule without thresholds")
            ExitOptions.of(rule)
        return cls(**{**fields, "rule": rule})


def calibrations_file(config: Config) -> Path:
    return config.config_dir / "calibrations.json"


def load_calibrations(config: Config) -> tuple[Calibration, ...]:
    """Raises ConfigError when the file can't be read or is not ours."""
    path = calibrations_file(config)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, this FlashEdge knows {VERSION}")
        return tuple(Calibration.from_json(entry) for entry in data["calibrations"])
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RequestError) as error:
        raise ConfigError(
            f"{path} holds no calibrations: {error}",
            hint="hint it, or remove it and run flashedge calibrate again",
        ) from error


def save_calibration(found: Calibration, config: Config) -> Path:
    """Put it in the place of an earlier one of that pair and strategy; the file. Raises
    ConfigError."""
    path = calibrations_file(config)
    key = (found.pair, found.strategy)
    others = [c for c in load_calibrations(config) if (c.pair, c.strategy) != key]
    data = {"version": VERSION, "calibrations": [c.to_json() for c in (*others, found)]}
    written = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        written.replace(path)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}") from error
    return path


# ---------------------------------------------------------------- for a run


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """What of a run its answers and measures hang on, beside problem, pair, strategy and n."""
    return {
        "aggregate": spec.aggregate,
        "selection": spec.selection,
        "options": dict(spec.options),
        "answers": spec.answers,
    }


def with_early_exit(spec: RunSpec, config: Config, fingerprint: Callable[[], str]) -> RunSpec:
    """The run with its early exit settled, `early_exit_source` saying by whom; a calibration that
    does not fit is left aside, `early_exit_note` saying why. Raises ConfigError.

    fingerprint: of the pair that serves, asked for only where there is a calibration.
    """
    if spec.early_exit is None:
        return spec
    if spec.early_exit.says_how:
        return replace(spec, early_exit_source=REQUEST)
    key = (spec.pair, spec.strategy)
    found = next((c for c in load_calibrations(config) if (c.pair, c.strategy) == key), None)
    if found is None:
        return replace(spec, early_exit_source=DEFAULTS)
    changed = misfit(found, settings_of(spec), fingerprint())
    if changed is not None:
        note = f"the calibration of {found.date} is not used: {changed}; calibrate again"
        return replace(spec, early_exit_source=DEFAULTS, early_exit_note=note)
    if found.rule is None:
        note = f"the calibration of {found.date} found no early exit that pays: the run goes on"
        return replace(spec, early_exit=None, early_exit_source=CALIBRATION, early_exit_note=note)
    settled = replace(
        ExitOptions.of(found.rule),
        give_up_after=spec.early_exit.give_up_after,
        give_up_below=spec.early_exit.give_up_below,
    )
    return replace(spec, early_exit=settled, early_exit_source=CALIBRATION)


def misfit(found: Calibration, settings: Mapping[str, Any], fingerprint: str) -> str | None:
    """Why a calibration says nothing about runs of these settings on this pair; None: it fits."""
    if found.fingerprint != fingerprint:
        return f"the pair {found.pair} has changed since"
    differing = [name for name, value in settings.items() if found.settings.get(name) != value]
    return f"it was made with other {', '.join(differing)}" if differing else None


def as_asked(spec: RunSpec) -> RunSpec:
    """The run as its request had it, whatever calibrations there were."""
    if spec.early_exit_source not in (CALIBRATION, DEFAULTS):
        return spec
    given = spec.early_exit or ExitOptions()
    silent = ExitOptions(give_up_after=given.give_up_after, give_up_below=given.give_up_below)
    return replace(spec, early_exit=silent, early_exit_source=DEFAULTS, early_exit_note=None)
