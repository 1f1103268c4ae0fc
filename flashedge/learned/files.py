"""A trained model on disk: a folder with its weights, its settings and where it comes from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashedge.errors import CheckpointError, StoreError
from flashedge.learned.settings import ModelSettings

if TYPE_CHECKING:
    from flashedge.learned.model import LengthModel

VERSION = 1
RECORD, WEIGHTS, ENCODER = "model.json", "model.safetensors", "encoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """What a model folder says of its model. Reading it loads no weights."""

    pair: str
    """Name of the pair whose lengths it predicts."""

    fingerprint: str
    """The pair's files and settings at the time (`models.folders`)."""

    tokenizer: str
    """SHA-256 of the generator's tokenizer, whose tokens the model reads."""

    settings: ModelSettings
    provenance: Mapping[str, Any]
    """Date, number of prompts and outputs, errors on held-out prompts: plain JSON values."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "pair": self.pair,
            "fingerprint": self.fingerprint,
            "tokenizer": self.tokenizer,
            "settings": self.settings.to_json(),
            "provenance": dict(self.provenance),
        }


def read_record(folder: Path) -> ModelRecord | None:
    """Read what a model folder says. None without a model. Raises CheckpointError."""
    path = folder / RECORD
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, this FlashEdge knows {VERSION}")
        return ModelRecord(
            pair=data["pair"],
            fingerprint=data["fingerprint"],
            tokenizer=data["tokenizer"],
            settings=ModelSettings.from_json(data["settings"]),
            provenance=data["provenance"],
        )
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} describes no length model: {error}",
            hint="train it again: flashedge lengths train --replace",
        ) from error


def save_model(model: LengthModel, record: ModelRecord, folder: Path) -> None:
    """Write a model in place of any earlier one. Raises StoreError.

    The earlier one stays whole until the new one is complete.
    """
    from safetensors.torch import save_file

    from flashedge.learned.encoder import CheckpointEncoder

    fresh, old = (folder.with_name(f"{folder.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    try:
        fresh.mkdir(parents=True)
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        save_file(weights, fresh / WEIGHTS)
        if isinstance(model.encoder, CheckpointEncoder):
            model.encoder.save_shape(fresh / ENCODER)
        text = json.dumps(record.to_json(), indent=2) + "\n"
        (fresh / RECORD).write_text(text, encoding="utf-8")
        _swap(folder, fresh, old)
    except OSError as error:
        raise StoreError(f"can't write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _swap(folder: Path, fresh: Path, old: Path) -> None:
    """Put `fresh` in the place of `folder`, whose earlier content goes to `old`."""
    if folder.exists():
        folder.replace(old)
    try:
        fresh.replace(folder)
    except OSError:
        if old.exists():
            old.replace(folder)
        raise


def load_model(folder: Path, settings: ModelSettings) -> LengthModel:
    """Load the weights of a model folder. Raises CheckpointError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from flashedge.learned.encoder import CheckpointEncoder, SmallEncoder
    from flashedge.learned.model import LengthModel

    own = settings.encoder
    try:
        encoder: CheckpointEncoder | SmallEncoder
        if own.checkpoint is None:
            encoder = SmallEncoder(own)
        else:
            encoder = CheckpointEncoder(folder / ENCODER, own.max_tokens, with_weights=False)
        model = LengthModel(settings, encoder)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no length model: {error}",
            hint="train it again: flashedge lengths train --replace",
        ) from error
    return model.eval()
