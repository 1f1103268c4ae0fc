"""A model's files: into FlashEdge's cache, and out of it again."""

from __future__ import annotations

import errno
import shutil
import uuid
from pathlib import Path

from flashedge.config import Config
from flashedge.errors import CheckpointError, ConfigError, DaemonError
from flashedge.models.folders import check_model, find_snapshot, locate_hub
from flashedge.models.specs import ModelSpec

_PATTERNS = ["*.json", "*.safetensors", "*.bin", "*.txt", "*.model", "*.jinja"]
_OTHER_FORMATS = ["onnx/*", "openvino/*"]
_SPARE_BYTES = 1 << 28
_OFFLINE = "check the network, or copy the files: flashedge models pull NAME --from FOLDER"
_OTHER_CACHE = "choose a folder that you may write: flashedge config set cache_dir FOLDER"


def pull_from_hub(spec: ModelSpec, config: Config) -> Path:
    """Download from the Hugging Face hub.

    Raises DaemonError within seconds when the hub can't be reached, CheckpointError, ConfigError.
    """
    hub = locate_hub(config)
    if not _is_hub_reachable():
        kept = find_snapshot(hub, spec.source, spec.revision)  # what an earlier download left
        if kept is None:
            raise _unreachable(spec.source)
        check_model(kept, spec)
        return kept
    _check_room(hub, spec.weights_bytes or 0)
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            spec.source,
            revision=spec.revision,
            cache_dir=hub,
            allow_patterns=_PATTERNS,
            ignore_patterns=_OTHER_FORMATS,
        )
    except hub_errors.GatedRepoError as error:
        told = f"{spec.source} has a licence that you must accept on the hub"
        hint = f"accept it at https://huggingface.co/{spec.source}, then type: hf auth login"
        raise CheckpointError(told, hint=hint) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.RevisionNotFoundError) as error:
        told = f"the hub has no {spec.source} at revision {spec.revision or 'main'}"
        raise CheckpointError(told) from error
    except OSError as error:
        raise _translate(error, hub) from error
    except Exception as error:
        raise _unreachable(spec.source) from error
    check_model(Path(folder), spec)
    return Path(folder)


def pull_from_folder(spec: ModelSpec, source: Path, config: Config) -> Path:
    """Copy from a hub cache or a plain model folder. A copy that fails leaves nothing behind.

    Raises CheckpointError when the folder doesn't hold the model or the model is broken.
    """
    found = _find_in_folder(spec, source)
    check_model(found, spec)
    hub = locate_hub(config)
    top = _locate(spec, hub)
    revision = spec.revision or "main"
    in_cache = found.parent.name == "snapshots"
    commit = found.name if in_cache else (revision if revision != "main" else "local")
    to = top / "snapshots" / commit
    try:
        if found.resolve() == to.resolve():
            return to
        _check_room(hub, sum(f.stat().st_size for f in found.iterdir() if f.is_file()))
        fresh = top / "snapshots" / f".new-{uuid.uuid4().hex}"
        try:
            shutil.copytree(found, fresh, symlinks=False)
            if to.exists():
                shutil.rmtree(to)
            fresh.rename(to)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        if revision != commit:
            ref = top / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, encoding="utf-8")
    except shutil.Error as error:
        raise CheckpointError(f"can't copy {found}: {error}") from error
    except OSError as error:
        raise _translate(error, hub) from error
    return to


def remove(spec: ModelSpec, config: Config) -> int | None:
    """Delete the model from FlashEdge's cache. Returns the bytes freed, None if it wasn't there."""
    top = _locate(spec, locate_hub(config))
    if not top.is_dir():
        return None
    freed = sum(f.lstat().st_size for f in top.rglob("*") if f.is_file() and not f.is_symlink())
    try:
        shutil.rmtree(top)
    except OSError as error:
        raise _translate(error, top) from error
    return freed


def _locate(spec: ModelSpec, hub: Path) -> Path:
    return hub / f"models--{spec.source.replace('/', '--')}"


def _find_in_folder(spec: ModelSpec, source: Path) -> Path:
    if not source.is_dir():
        raise CheckpointError(f"there is no folder {source}")
    for hub in (source, source / "hub", source.parent):
        for revision in (spec.revision, None):
            if found := find_snapshot(hub, spec.source, revision):
                return found
    if (source / "config.json").is_file():
        return source
    name = _locate(spec, source).name
    raise CheckpointError(
        f"{source} does not hold {spec.source}",
        hint=f"it should hold {name}/snapshots/<revision>, or be the model's folder itself",
    )


def _check_room(hub: Path, needed: int) -> None:
    at = next(p for p in (hub, *hub.parents) if p.exists())
    free = shutil.disk_usage(at).free
    if free < needed + _SPARE_BYTES:
        raise ConfigError(
            f"not enough disk under {at}: {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} free",
            hint="free some space, or choose another disk: flashedge config set cache_dir FOLDER",
        )


def _translate(error: OSError, place: Path) -> ConfigError | DaemonError:
    """An error of the disk or of the network: Python has one class for both."""
    if error.errno == errno.ENOSPC:
        return ConfigError(f"no space left under {place}", hint=_OTHER_CACHE)
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ConfigError(
            f"can't write {error.filename or place}: {error.strerror}", hint=_OTHER_CACHE
        )
    return DaemonError(f"the Hugging Face hub can't be reached: {error}", hint=_OFFLINE)


def _unreachable(source: str) -> DaemonError:
    return DaemonError(f"can't download {source}: the hub can't be reached", hint=_OFFLINE)


def _is_hub_reachable() -> bool:
    """Whether the hub answers one request. Its own client would retry for half a minute."""
    import httpx
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=5.0)
    except httpx.HTTPError:
        return False
    return True
