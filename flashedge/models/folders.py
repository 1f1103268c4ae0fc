"""Where the files of a model are on this machine, and fingerprints of them."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoints import check_checkpoint, check_embedder
from flashedge.models.specs import EmbedderSpec, ModelSpec, Pair, VerifierSpec


def locate_hub(config: Config) -> Path:
    """The folder that `models pull` writes to, laid out like the Hugging Face cache."""
    return config.cache_dir / "hub"


def is_folder(source: str) -> bool:
    """Whether `source` names a folder, not a model on Hugging Face."""
    return source.startswith(("/", "./", "../", "~"))


def find_snapshot(hub: Path, source: str, revision: str | None) -> Path | None:
    """The folder of `source` in the cache `hub`; None when it isn't there."""
    folder = locate_source(hub, source) / "snapshots" / find_commit(hub, source, revision)
    return folder if (folder / "config.json").is_file() else None


def find_commit(hub: Path, source: str, revision: str | None) -> str:
    """The commit that an earlier download got of `source`, else `revision`."""
    name = revision or "main"
    ref = locate_source(hub, source) / "refs" / name
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else name


def locate_source(hub: Path, source: str) -> Path:
    """The folder of all versions of `source` in the cache `hub`."""
    return hub / f"models--{source.replace('/', '--')}"


def locate_model(spec: ModelSpec, config: Config) -> Path | None:
    """Find the model's folder, unchecked: its source if that names a folder, else in FlashEdge's or
    Hugging Face's cache. None if there is none."""
    if is_folder(spec.source):
        folder = Path(os.path.expanduser(spec.source))  # leaves the `~name` of no user as it is
        return folder if folder.is_dir() else None
    users: str | Path | None = os.environ.get("HF_HUB_CACHE")
    if not users:  # where it is set, no home is needed: a container may have none
        users = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface", "hub")
    hubs = (locate_hub(config), Path(users))
    found = (find_snapshot(hub, spec.source, spec.revision) for hub in hubs)
    return next(filter(None, found), None)


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
    """Raises CheckpointError at the first thing that is wrong with the model's files."""
    limit = spec.max_model_len
    if isinstance(spec, EmbedderSpec):
        check_embedder(folder)
    elif isinstance(spec, VerifierSpec):
        check_checkpoint(folder, family=spec.family, tokens=spec.tokens, max_model_len=limit)
    else:
        check_checkpoint(folder, max_model_len=limit)


_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_WEIGHTS = ("*.safetensors", "*.bin")
_BY_FILES = ("source", "weights_bytes", "parameters", "architecture", "quantized")
"""Fields that are not part of the fingerprint, since the files decide them."""
_UNUSED = ("tool_parser", "reasoning_parser", "compact_json", "license")
"""Fields that are not part of the fingerprint, since runs do not use them."""
_OPTIONAL = ("quantization", "chat_template_kwargs", "thinking", "thinking_tags")
"""Fields that only count if they are set: fingerprints made before they existed stay valid."""
_SAMPLE_BYTES = 1 << 20
"""How much of each end of a weights file is hashed. Reading 15 GB can take minutes."""


def fingerprint_pair(pair: Pair, config: Config) -> str:
    """Hash what decides the pair's output to 16 hex digits: the files of its models, their
    options, the system prompt and the sampling. The place of the files does not count."""
    digest = hashlib.sha256()
    shared = {"system_prompt": pair.system_prompt, "sampling": asdict(pair.sampling)}
    digest.update(json.dumps(shared, sort_keys=True).encode())
    for spec in pair.models.values():
        digest.update(_hash_model(spec, locate_model(spec, config)))
    return digest.hexdigest()[:16]


def fingerprint_model(spec: ModelSpec, config: Config) -> str:
    """Hash a model's files and options to 16 hex digits."""
    return _hash_model(spec, locate_model(spec, config)).hex()[:16]


def find_last_change_s(pair: Pair, config: Config) -> float:
    """When a file of the pair was last written, in unix seconds. 0 without any file."""
    folders = [locate_model(spec, config) for spec in pair.models.values()]
    files = [file for folder in folders if folder is not None for file in _list_files(folder)]
    return max((file.stat().st_mtime for file in files), default=0.0)


def _list_files(folder: Path) -> list[Path]:
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    return [*(folder / name for name in _TEXT_FILES if (folder / name).is_file()), *weights]


def _hash_model(spec: ModelSpec, folder: Path | None) -> bytes:
    """Hash the model's options and files, or its source if its files are not on this machine."""
    options = {
        name: value
        for name, value in asdict(spec).items()
        if name not in (*_BY_FILES, *_UNUSED) and (value or name not in _OPTIONAL)
    }
    if folder is None:
        options["source"] = spec.source
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    if folder is not None:
        for file in _list_files(folder):
            digest.update(_hash_file(file))
    return digest.digest()


def _hash_file(file: Path) -> bytes:
    """Hash a text file whole, and a weights file by its size and both ends."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{file.name} {size}".encode())
    with file.open("rb") as data:
        if file.name in _TEXT_FILES:
            digest.update(data.read())
        else:
            digest.update(data.read(_SAMPLE_BYTES))
            data.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(data.read(_SAMPLE_BYTES))
    return digest.digest()
