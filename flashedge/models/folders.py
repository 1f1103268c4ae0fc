"""Where the files of a model are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import check_checkpoint, check_embedder
from flashedge.models.specs import EmbedderSpec, ModelSpec, Pair, VerifierSpec


def hub_folder(config: Config) -> Path:
    """The folder that `models pull` writes to, laid out like the Hugging Face cache."""
    return config.cache_dir / "hub"


def is_folder(source: str) -> bool:
    """Whether `source` names a folder, not a model on Hugging Face."""
    return source.startswith(("/", "./", "../", "~"))


def find_snapshot(hub: Path, source: str, revision: str | None) -> Path | None:
    """The folder of `source` in the cache `hub`. None when it isn't there."""
    top = hub / f"models--{source.replace('/', '--')}"
    name = revision or "main"
    ref = top / "refs" / name
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else name
    folder = top / "snapshots" / commit
    return folder if (folder / "config.json").is_file() else None


def locate_model(spec: ModelSpec, config: Config) -> Path | None:
    """The model's folder, unchecked: in FlashEdge's cache, else in Hugging Face's."""
    if is_folder(spec.source):
        folder = Path(spec.source).expanduser()
        return folder if folder.is_dir() else None
    for hub in (hub_folder(config), _users_hub()):
        found = find_snapshot(hub, spec.source, spec.revision)
        if found:
            return found
    return None


def is_local(pair: Pair, config: Config) -> bool:
    """Whether both models of a pair are on this machine, unchecked."""
    return None not in (locate_model(pair.generator, config), locate_model(pair.verifier, config))


def resolve_model(spec: ModelSpec, config: Config) -> Path:
    """The model's folder, checked. Raises CheckpointError naming what is missing."""
    folder = locate_model(spec, config)
    if folder is None:
        if is_folder(spec.source):
            raise CheckpointError(f"there is no model folder {spec.source}")
        hint = f"flashedge models pull {spec.source}"
        if Path(spec.source).is_dir():
            hint = f"to use the folder of that name, write ./{spec.source}"
        raise CheckpointError(f"{spec.source} is not on this machine", hint=hint)
    check_model(folder, spec)
    return folder


def check_model(folder: Path, spec: ModelSpec) -> None:
    """Raises CheckpointError unless `folder` holds what `spec` describes."""
    limit = spec.max_model_len
    if isinstance(spec, EmbedderSpec):
        check_embedder(folder)
    elif isinstance(spec, VerifierSpec):
        check_checkpoint(
            folder, "verifier", family=spec.family, tokens=spec.tokens, max_model_len=limit
        )
    else:
        check_checkpoint(folder, "generator", max_model_len=limit)


def _users_hub() -> Path:
    """The Hugging Face cache of the user."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"
