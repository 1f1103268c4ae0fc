"""What was measured of a pair on this device: two JSON files, valid for one fingerprint.

The profile:
{"version": 1, "made_at": …, "quick": …, "wall_s": …, "load": …, "kind": "cpu",
 "fingerprint": {"device": …, "driver": …, "vllm": …, "torch": …, "pair": …, …},
 "device": {"gemm": […], "copies": […], "transfers": […], "launch_s": …, "round_trip_s": …},
 "models": [{"name": "generator", "samples": [{phase, sequences, context, new, seconds, flops,
             bytes}, …], "fits": {"prefill": {overhead_s, sequence_s, flops_per_s, bytes_per_s,
             median_error, p90_error, samples}, "decode": {…}}}, …],
 "warnings": […]}

The bytes of memory that generator and verifier took besides KV when they first started here, by the
limit on the sequences of a step:
{"version": 1, "fingerprint": {…}, "engines": {"128": [{"weights": …, "context": …, …}, {…}]}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.profiler import ProfileError
from flashedge.profiler.roofline import Fit, Sample

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What was measured of one model, and the curves fitted to it."""

    name: str
    samples: tuple[Sample, ...]
    """The median sample of each point."""
    fits: Mapping[str, Fit]
    """The fit of each phase (prefill, decode)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The docstring of this module shows its JSON."""

    made_at: str
    """When the measurement ended, in ISO format."""
    quick: bool
    wall_s: float
    """Seconds that the measurement took, with the start of the engines."""
    load: float
    """The load average of the machine over the last minute of the measurement."""
    fingerprint: Mapping[str, str]
    """What the figures depend on."""
    kind: str
    """The kind of device: cpu or cuda."""
    device: Mapping[str, Any]
    """The figures of `bench`."""
    models: tuple[ModelProfile, ...]
    warnings: tuple[str, ...]
    """What slowed the device when it had just been measured."""

    @property
    def gemm_flops_per_s(self) -> dict[str, float]:
        """The best rate of each dtype, of all sizes of matrices."""
        best: dict[str, float] = {}
        for row in self.device["gemm"]:
            best[row["dtype"]] = max(best.get(row["dtype"], 0.0), row["flops_per_s"])
        return best

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth of the device's memory, measured by the largest copy."""
        largest = max(self.device["copies"], key=lambda row: row["bytes"])
        return float(largest["bytes_per_s"])

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError or AttributeError."""
        from pydantic import TypeAdapter

        if data.get("version") != VERSION:
            version = data.get("version")
            raise ValueError(f"its version is {version}, but this FlashEdge reads {VERSION}")
        profile = TypeAdapter(cls).validate_python(data)
        if not (profile.gemm_flops_per_s and profile.bytes_per_s > 0):
            raise ValueError("it has no figures of the device")
        return profile


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProfile:
    """A profile that fits this device, or why there is none."""

    profile: Profile | None = None
    why: str | None = None
    """Why there is none. None if there is one."""
    changed: tuple[tuple[str, str, str], ...] = ()
    """The parts of the fingerprint that differ: (name, then, now)."""


def load_profile(path: Path, fingerprint: Mapping[str, str]) -> FoundProfile:
    """The profile in `path`, if its fingerprint is `fingerprint`. Never raises: a new profile fixes
    anything wrong with the file."""
    try:
        profile = Profile.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return FoundProfile(why="there is none yet")
    except OSError as error:
        return FoundProfile(why=f"{path} can't be read: {error.strerror}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")
        return FoundProfile(why=f"{path} is not a profile: {reason}")
    then, now = profile.fingerprint, fingerprint
    changed = tuple(
        (name, then.get(name, "nothing"), now.get(name, "nothing"))
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )
    if not changed:
        return FoundProfile(profile=profile)
    changes = "; ".join(f"{name} was {was}, is {is_now}" for name, was, is_now in changed)
    return FoundProfile(why=f"it was made on something else: {changes}", changed=changed)


def save_profile(profile: Profile, path: Path) -> None:
    """Store a profile. Raises ProfileError."""
    _write(profile.to_json(), path)


Parts = Mapping[str, int]
"""Bytes by part of an engine's memory."""


def load_memory(path: Path, fingerprint: Mapping[str, str], sequences: int) -> tuple[Parts, ...]:
    """The bytes of each engine by part, for steps of at most `sequences` sequences. Empty if none
    were measured with this fingerprint. Never raises: a new measurement replaces a damaged file."""
    found = _read(path, fingerprint).get(str(sequences), ())
    try:
        return tuple({str(k): int(v) for k, v in parts.items()} for parts in found)
    except (AttributeError, OverflowError, TypeError, ValueError):
        return ()


def save_memory(
    path: Path, fingerprint: Mapping[str, str], sequences: int, engines: Sequence[Parts]
) -> None:
    """Add a measurement to the file, and drop those of another fingerprint. Raises ProfileError."""
    kept = {**_read(path, fingerprint), str(sequences): [dict(parts) for parts in engines]}
    _write({"version": VERSION, "fingerprint": dict(fingerprint), "engines": kept}, path)


def _read(path: Path, fingerprint: Mapping[str, str]) -> dict[str, list[Parts]]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] == VERSION and data["fingerprint"] == dict(fingerprint):
            return dict(data["engines"])
    return {}


def _write(data: Mapping[str, Any], path: Path) -> None:
    """Write a file in one step, so that it is never half written. Raises ProfileError."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ProfileError(f"can't write {path}: {error.strerror}") from error
