"""A name for the files of a pair, so that a retrained pair counts as another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from flashedge.config import Config
from flashedge.models.folders import locate_model
from flashedge.models.specs import ModelSpec, Pair

_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS = ("*.safetensors", "*.bin")
_IGNORED = (
    *("source", "weights_bytes", "parameters", "architecture", "quantized"),
    *("tool_parser", "reasoning_parser", "compact_json", "license"),
)
"""The files decide the first ones; runs do not use the others."""
_OPTIONAL = ("quantization", "chat_template_kwargs", "thinking")
"""Not part of the fingerprint while they are not set, so that the field itself changes none."""
_SAMPLE_BYTES = 1 << 20  # read at each end of a weights file; reading 15 GB would take minutes


def pair_fingerprint(pair: Pair, config: Config) -> str:
    """16 hex digits of everything that decides the pair's output.

    That is the files of both models, their options, the system prompt and the sampling. The place
    of the files does not count.
    """
    digest = hashlib.sha256()
    shared = {"system_prompt": pair.system_prompt, "sampling": asdict(pair.sampling)}
    digest.update(json.dumps(shared, sort_keys=True).encode())
    for spec in (pair.generator, pair.verifier):
        digest.update(_hash_model(spec, locate_model(spec, config)))
    return digest.hexdigest()[:16]


def model_digest(spec: ModelSpec, config: Config) -> str:
    """16 hex digits of a model's files and options."""
    return _hash_model(spec, locate_model(spec, config)).hex()[:16]


def last_change_s(pair: Pair, config: Config) -> float:
    """When a file of the pair was last written, in unix seconds. 0 without any file."""
    folders = [locate_model(spec, config) for spec in (pair.generator, pair.verifier)]
    files = [file for folder in folders if folder is not None for file in _list_files(folder)]
    return max((file.stat().st_mtime for file in files), default=0.0)


def _list_files(folder: Path) -> list[Path]:
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    return [*(folder / name for name in _TEXT_FILES if (folder / name).is_file()), *weights]


def _hash_model(spec: ModelSpec, folder: Path | None) -> bytes:
    """Covers the model's source only when its files are not on this machine."""
    options = {
        name: value
        for name, value in asdict(spec).items()
        if name not in _IGNORED and (value or name not in _OPTIONAL)
    }
    if folder is None:
        options["source"] = spec.source
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    if folder is not None:
        for file in _list_files(folder):
            digest.update(_hash_file(file))
    return digest.digest()


def _hash_file(file: Path) -> bytes:
    """Reads text files whole, and weights at both ends."""
    digest = hashlib.sha256(f"{file.name} {file.stat().st_size}".encode())
    with file.open("rb") as data:
        if file.name in _TEXT_FILES:
            digest.update(data.read())
        else:
            digest.update(data.read(_SAMPLE_BYTES))
            data.seek(max(0, file.stat().st_size - _SAMPLE_BYTES))
            digest.update(data.read(_SAMPLE_BYTES))
    return digest.digest()
