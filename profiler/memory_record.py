"""What engines took beside their KV cache when they first started here, one file a pair.

{"version": 1, "fingerprint": {"device": …, "driver": …, "vllm": …, "torch": …, "pair": …, …},
 "engines": {"128": [{"weights": …, "context": …, …}, {…}]}}

The keys of "engines" are the most sequences of a step, its values the generator's and the
verifier's bytes by part. The file stands beside the pair's profile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from flashedge.profiler.errors import ProfileError

VERSION = 1
Parts = Mapping[str, int]


def load_memory(path: Path, fingerprint: Mapping[str, str], sequences: int) -> tuple[Parts, ...]:
    """The engines' bytes by part; empty where they were not measured on this device.

    Never raises, because a new measurement fixes whatever is wrong with the file.
    """
    found = _read(path, fingerprint).get(str(sequences), ())
    try:
        return tuple({str(k): int(v) for k, v in parts.items()} for parts in found)
    except (AttributeError, TypeError, ValueError):
        return ()


def save_memory(
    path: Path, fingerprint: Mapping[str, str], sequences: int, engines: Sequence[Parts]
) -> None:
    """Add a measurement to the file. Those of another device are dropped. Raises ProfileError."""
    kept = {**_read(path, fingerprint), str(sequences): [dict(parts) for parts in engines]}
    data = {"version": VERSION, "fingerprint": dict(fingerprint), "engines": kept}
    fresh = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise ProfileError(f"can't write {path}: {error.strerror}") from error


def _read(path: Path, fingerprint: Mapping[str, str]) -> dict[str, list[Parts]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] == VERSION and data["fingerprint"] == dict(fingerprint):
            return dict(data["engines"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}
