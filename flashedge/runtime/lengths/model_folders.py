"""Where trained length models lie, and whether one fits the pair that serves now."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from flashedge.config import Config
from flashedge.learned.files import ModelRecord, read_record
from flashedge.learned.settings import DISTRIBUTION, FAMILIES, OBJECTIVES, ModelSettings
from flashedge.models.folders import locate_model, pair_fingerprint
from flashedge.models.specs import Pair

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
NAMES = (*FAMILIES, *(name for name in OBJECTIVES if name != DISTRIBUTION))
"""Models of one pair: one for each family of distributions, and one for each other objective."""


def name_model(settings: ModelSettings) -> str:
    """One of NAMES."""
    return settings.family if settings.objective == DISTRIBUTION else settings.objective


def find_folder(pair: str, name: str, config: Config) -> Path:
    """The folder of a pair's model, whether it exists or not. name: one of NAMES."""
    return config.state_dir / "lengths" / quote(pair, safe="+") / name


def list_records(pair: str, config: Config) -> tuple[tuple[str, ModelRecord], ...]:
    """The names of a pair's models, and what their folders say. Raises CheckpointError."""
    found = ((name, read_record(find_folder(pair, name, config))) for name in NAMES)
    return tuple((name, record) for name, record in found if record is not None)


def hash_tokenizer(pair: Pair, config: Config) -> str:
    """SHA-256 of what makes a prompt's tokens: the generator's tokenizer and chat template."""
    digest = hashlib.sha256((pair.system_prompt or "").encode())
    folder = locate_model(pair.generator, config)
    for name in TOKENIZER_FILES:
        file = None if folder is None else folder / name
        if file is not None and file.is_file():
            digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()


def find_mismatch(record: ModelRecord, pair: Pair, config: Config) -> str | None:
    """Say why a model does not fit the pair as it is now. None if it fits."""
    if record.tokenizer != hash_tokenizer(pair, config):
        return "it reads another tokenizer's tokens"
    if record.fingerprint != pair_fingerprint(pair, config):
        return f"the pair {pair.name} has changed since it was trained"
    return None
