"""Which models a pair really is: a name for their files, so that a retrained pair is another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from flashedge.config import Config
from flashedge.models.registry import ModelSpec, Pair, locate

_WHOLE = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS = ("*.safetensors", "*.bin")
_ELSEWHERE = ("source", "weights_bytes", "architecture", "quantized")  # the files themselves say it
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


def changed_at(pair: Pair, config: Config) -> float:
    """When the pair's files were last written, unix seconds; 0 for models that are not here."""
    folders = [locate(spec, config) for spec in (pair.generator, pair.verifier)]
    files = [file for folder in folders if folder is not None for file in _files(folder)]
    return max((file.stat().st_mtime for file in files), default=0.0)


def _files(folder: Path) -> list[Path]:
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    return [*(folder / name for name in _WHOLE if (folder / name).is_file()), *weights]


def _model(spec: ModelSpec, folder: Path | None) -> bytes:
    """Of a model that is not on this machine its name must do."""
    said = {k: v for k, v in asdict(spec).items() if k not in _ELSEWHERE}
    if folder is None:
        said["source"] = spec.source
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    if folder is not None:
        for file in _files(folder):
            digest.update(_content(file))
    return digest.digest()


def _content(file: Path) -> bytes:
    """Of weights the two ends are read, of anything else all."""
    digest = hashlib.sha256(f"{file.name} {file.stat().st_size}".encode())
    with file.open("rb") as data:
        if file.name in _WHOLE:
            digest.update(data.read())
        else:
            digest.update(data.read(_SAMPLE_BYTES))
            data.seek(max(0, file.stat().st_size - _SAMPLE_BYTES))
            digest.update(data.read(_SAMPLE_BYTES))
    return digest.digest()
