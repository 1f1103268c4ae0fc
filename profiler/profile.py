"""The profile on disk: one JSON file, versioned, that says what it was measured on.

{"version": 1, "made_at": …, "quick": …, "wall_s": …, "load": …, "kind": "cpu",
 "fingerprint": {"device": …, "driver": …, "vllm": …, "torch": …, "pair": …, …},
 "device": {"gemm": […], "copies": […], "transfers": […], "launch_s": …, "round_trip_s": …},
 "models": [{"name": "generator", "samples": [{phase, sequences, context, new, seconds, flops,
             bytes}, …], "fits": {"prefill": {overhead_s, sequence_s, flops_per_s, bytes_per_s,
             median_error, p90_error, samples}, "decode": {…}}}, …],
 "warnings": […]}
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.profiler.errors import ProfileError
from flashedge.profiler.roofline import Fit, Sample

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """samples: the median of each point; fits: by phase (prefill, decode)."""

    name: str
    samples: tuple[Sample, ...]
    fits: Mapping[str, Fit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """See the module. load: of the machine when it was done (1 minute); device: see `bench`;
    warnings: what slowed the device then."""

    made_at: str
    quick: bool
    wall_s: float
    load: float
    fingerprint: Mapping[str, str]
    kind: str
    device: Mapping[str, Any]
    models: tuple[Model, ...]
    warnings: tuple[str, ...]

    @property
    def gemm_flops_per_s(self) -> dict[str, float]:
        """The best product of each dtype."""
        best: dict[str, float] = {}
        for row in self.device["gemm"]:
            best[row["dtype"]] = max(best.get(row["dtype"], 0.0), row["flops_per_s"])
        return best

    @property
    def bytes_per_s(self) -> float:
        """Of the device's memory: the largest copy's."""
        largest = max(self.device["copies"], key=lambda row: row["bytes"])
        return float(largest["bytes_per_s"])

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """The inverse. Raises KeyError, TypeError or ValueError."""
        fields = dict(data)
        if fields.pop("version") != VERSION:
            raise ValueError(f"its version is {data['version']}, this FlashEdge reads {VERSION}")
        models = tuple(
            Model(
                name=str(m["name"]),
                samples=tuple(Sample(**s) for s in m["samples"]),
                fits={str(phase): Fit(**f) for phase, f in m["fits"].items()},
            )
            for m in fields["models"]
        )
        made = cls(**{**fields, "models": models, "warnings": tuple(fields["warnings"])})
        if not (made.gemm_flops_per_s and made.bytes_per_s > 0):
            raise ValueError("it has no figures of the device")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What `load_profile` found: a profile that fits, or why there is none.

    changed: the parts of the fingerprint that differ, each (name, then, now).
    """

    profile: Profile | None = None
    why: str | None = None
    changed: tuple[tuple[str, str, str], ...] = ()


def load_profile(path: Path, fingerprint: Mapping[str, str]) -> Found:
    """The profile in `path` if it was made on what `fingerprint` says. Never raises: whatever is
    wrong with the file, a new profile fixes it."""
    try:
        profile = Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Found(why="there is none yet")
    except OSError as error:
        return Found(why=f"{path} can't be read: {error.strerror}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Found(why=f"{path} is no profile: {type(error).__name__}: {error}")
    then, now = profile.fingerprint, fingerprint
    changed = tuple(
        (name, then.get(name, "nothing"), now.get(name, "nothing"))
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )
    if not changed:
        return Found(profile=profile)
    told = "; ".join(f"{name} was {was}, is {is_now}" for name, was, is_now in changed)
    return Found(why=f"it was made on something else: {told}", changed=changed)


def save_profile(profile: Profile, path: Path) -> None:
    """Write it whole or not at all. Raises ProfileError."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise ProfileError(f"can't write {path}: {error.strerror}") from error
