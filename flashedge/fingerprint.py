"""Which models a pair really is: a name for their files, so that a retrained pair is another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from flashedge.config import Config
from flashedge.registry import ModelSpec, Pair, locate

_WHOLE = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS = ("*.safetensors", "*.bin")
_SAMPLE_BYTES = 1 << 20  # of each end of a file of weights: 15 GB are not read for a name


def pair_fingerprint(pair: Pair, config: Config) -> str:
    """16 hex digits of what a run of the pair depends on: both models' files, how they are read,
    the system prompt and the sampling. Where the files lie does not count."""
    digest = hashlib.sha256()
    said = {"system_prompt": pair.system_prompt, "sampling": asdict(pair.sampling)}
    digest.update(json.dumps(said, sort_keys=True).encode())
    for spec in (pair.generator, pair.verifier):
        digest.update(_model(spec, locate(spec, config)))
    return digest.hexdigest()[:16]


def _model(spec: ModelSpec, folder: Path | None) -> bytes:
    """Of a model that is not on this machine its name must do."""
    said = {k: v for k, v in asdict(spec).items() if k not in ("source", "weights_bytes")}
    if folder is None:
        said["source"] = spec.source
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    if folder is not None:
        for name in _WHOLE:
            if (folder / name).is_file():
                digest.update(name.encode() + (folder / name).read_bytes())
        for file in sorted(f for pattern in _WEIGHTS for f in folder.glob(pattern)):
            digest.update(_weights(file))
    return digest.digest()


def _weights(file: Path) -> bytes:
    size = file.stat().st_size
    digest = hashlib.sha256(f"{file.name} {size}".encode())
    with file.open("rb") as data:
        digest.update(data.read(_SAMPLE_BYTES))
        data.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(data.read(_SAMPLE_BYTES))
    return digest.digest()
