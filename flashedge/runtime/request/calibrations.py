"""Calibrations on disk: `calibrations.json` in the folder of the user's config.toml.

`flashedge calibrate` writes it. The daemon reads it when a request turns on early exit without
naming a policy.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashedge.certainty.policies import Rule
from flashedge.config import Config
from flashedge.errors import ConfigError, RequestError
from flashedge.files.versions import FileVersion
from flashedge.runtime.request.early_exit import REMOVED, ExitOptions
from flashedge.runtime.request.validation import Request
from flashedge.types import BLANK_LINE, STEPS

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The best rule that was found for a strategy on a pair."""

    pair: str
    strategy: str
    fingerprint: str
    """The pair's fingerprint at that time (`models.folders`)."""
    settings: Mapping[str, Any]
    """The settings of the runs (`collect_settings`)."""
    rule: Rule | None
    """None in files of older versions means that no early exit paid."""
    provenance: Mapping[str, Any]
    """Date, problems, n, accuracy and tokens before and after: plain JSON values."""

    @property
    def date(self) -> str:
        return str(self.provenance.get("date", "an unknown date"))

    @property
    def num_problems(self) -> int:
        return int(self.provenance.get("num_problems", 0))

    @property
    def loss_bound(self) -> float | None:
        """Upper 95 % bound of the loss of accuracy, a share. None in files of older versions."""
        bound = self.provenance.get("chosen", {}).get("loss_bound")
        return None if bound is None else float(bound)

    @property
    def saved(self) -> float:
        """Share of the tokens that the rule saved, on the problems that chose it."""
        return float(self.provenance.get("chosen", {}).get("saved", 0.0))

    def is_better_than(self, other: Calibration) -> bool:
        """Whether `other`, with the same models and settings, has fewer problems or smaller savings
        than this, so that it should not replace this silently. False without a `loss_bound`."""
        return (
            (self.fingerprint, self.settings) == (other.fingerprint, other.settings)
            and self.loss_bound is not None
            and (self.num_problems > other.num_problems or self.saved > other.saved)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """Invert `to_json`. Raises KeyError, TypeError, ValueError or RequestError."""
        fields, rule = dict(data), data["rule"]
        if rule is not None:
            thresholds = tuple((str(name), float(v)) for name, v in rule["thresholds"])
            rule = Rule(policy=rule["policy"], detect=rule["detect"], thresholds=thresholds)
            if not thresholds:
                raise ValueError("a rule without thresholds")
            ExitOptions().take_rule(rule)
        return cls(**{**fields, "rule": rule})


_EARLIER: Mapping[str, Any] = {
    "step_rule": BLANK_LINE,
    "entropy_rule": None,
    "judge": STEPS,
    "chat_template_kwargs": {},
}
"""Settings that calibrations of older versions do not name, with the only values that they had."""


def locate_calibrations(config: Config) -> Path:
    return config.config_dir / "calibrations.json"


def load_calibrations(config: Config) -> tuple[Calibration, ...]:
    """Read all calibrations. The file is parsed again when it has changed. Raises ConfigError."""
    path = locate_calibrations(config)
    try:
        version = FileVersion.find(path)
        return () if version is None else parse_calibrations(version)
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def parse_calibrations(version: FileVersion) -> tuple[Calibration, ...]:
    """Parse one version of the file. Leaves out calibrations that chose a removed policy. Raises
    ConfigError, OSError."""
    path = version.path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, this FlashEdge knows {VERSION}")
        entries = data["calibrations"]
        known = [e for e in entries if not e["rule"] or e["rule"]["policy"] not in REMOVED]
        return tuple(map(Calibration.from_json, known))
    except (KeyError, TypeError, ValueError, RequestError) as error:
        raise ConfigError(
            f"{path} holds no calibrations: {error}",
            hint="repair it, or remove it and run flashedge calibrate again",
        ) from error


def find_calibration(pair: str, strategy: str, config: Config) -> Calibration | None:
    """Find the stored calibration, whether it fits or not. Raises ConfigError."""
    found = (c for c in load_calibrations(config) if (c.pair, c.strategy) == (pair, strategy))
    return next(found, None)


def save_calibration(found: Calibration, config: Config) -> Path:
    """Write a calibration in place of an earlier one of its pair and strategy. Returns the file.
    Raises ConfigError."""
    path = locate_calibrations(config)
    key = (found.pair, found.strategy)
    others = [c for c in load_calibrations(config) if (c.pair, c.strategy) != key]
    data = {"version": VERSION, "calibrations": [c.to_json() for c in (*others, found)]}
    written = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        written.replace(path)
    except OSError as error:
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise ConfigError(f"can't write {path}: {error.strerror}") from error
    return path


def collect_settings(request: Request) -> dict[str, Any]:
    """Collect what answers and measures depend on, besides problem, pair, strategy and n."""
    return {
        "aggregate": request.aggregate,
        "selection": request.selection,
        "options": dict(request.options),
        "answers": request.answers,
        "step_rule": request.step_rule,
        "entropy_rule": request.entropy_rule and asdict(request.entropy_rule),
        "judge": request.judge,
        "chat_template_kwargs": dict(request.chat_template_kwargs),
    }


def find_mismatch(found: Calibration, settings: Mapping[str, Any], fingerprint: str) -> str | None:
    """Say why a calibration does not fit runs of these settings on this pair. None if it does."""
    if found.fingerprint != fingerprint:
        return f"the pair {found.pair} has changed since"
    made_with = {**_EARLIER, **found.settings}
    differing = [name for name, value in settings.items() if made_with.get(name) != value]
    return f"it was made with other {', '.join(differing)}" if differing else None
