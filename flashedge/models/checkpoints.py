"""Checks of a model's folder before an engine loads it. They are quick: only JSON files and the
headers of safetensors files are read, without torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashedge.errors import CheckpointError
from flashedge.models.specs import VERIFIER_FAMILIES

_EMBEDDER_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_EMBEDDER_HINT = "choose another model, such as sentence-transformers/all-MiniLM-L6-v2"
_EMBEDDINGS = tuple(
    f"{body}.embed_tokens.weight"
    for body in ("model", "pretrained_model.model", "model.language_model")
)
_PULL_AGAIN = "pull the model again"
_POINTER = b"version https://git-lfs"


def check_checkpoint(
    path: Path,
    *,
    family: str | None = None,
    tokens: Sequence[str] = (),
    max_model_len: int | None = None,
) -> None:
    """Raises CheckpointError at the first thing that is wrong with the folder `path`.

    family: the verifier's, or None for a generator. The vocabulary must hold `tokens`: the step and
    label tokens of a verifier.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no model folder {path}")
    config = read_json(path / "config.json")
    _check_architecture(path, config, family)
    text = get_text_config(config)
    limit = text.get("max_position_embeddings")
    if max_model_len and isinstance(limit, int) and limit < max_model_len:
        raise CheckpointError(
            f"{path}: max_model_len is {max_model_len}, but the model has {limit} positions",
            hint=f"set max_model_len = {limit} in models.toml",
        )
    rows = _check_weights(path)
    vocab_size = _find_vocab_size(path, text)
    if rows is not None and rows != vocab_size:
        raise CheckpointError(
            f"{path}: the weights embed {rows} tokens, but vocab_size in config.json is"
            f" {vocab_size}",
            hint="the files belong to different models; pull the model again",
        )
    _check_tokenizer(path, vocab_size, tokens)


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the text model: all of it, unless the model sees or
    hears too."""
    return config.get("text_config") or config


def check_embedder(path: Path) -> Path:
    """Check a sentence-transformers folder, which must pool by the mean. Returns the encoder's.
    Raises CheckpointError at the first thing that is wrong."""
    if not path.is_dir():
        raise CheckpointError(f"there is no model folder {path}")
    listed = path / "modules.json"
    if not listed.is_file():
        raise CheckpointError(
            f"{path} is not a sentence-embedding model: modules.json is missing",
            hint="choose a sentence-transformers model, such as all-MiniLM-L6-v2",
        )
    with _refuse_damage(listed):
        modules = json.loads(listed.read_text(encoding="utf-8"))
        kinds = [str(m["type"]).rpartition(".")[2] for m in modules]
        folders = [path / str(m["path"]) for m in modules]
    if kinds not in _EMBEDDER_MODULES:
        raise CheckpointError(
            f"{path} has the modules {', '.join(kinds) or 'none'}; FlashEdge supports Transformer,"
            " Pooling and Normalize",
            hint=_EMBEDDER_HINT,
        )
    pooling = read_json(folders[1] / "config.json")
    modes = [k for k, v in pooling.items() if k.startswith("pooling_mode_") and v is True]
    if modes != ["pooling_mode_mean_tokens"] and pooling.get("pooling_mode") != "mean":
        raise CheckpointError(f"{path} does not use mean pooling", hint=_EMBEDDER_HINT)
    encoder = folders[0]
    vocab_size = _find_vocab_size(encoder, read_json(encoder / "config.json"))
    _check_weights(encoder)
    _check_tokenizer(encoder, vocab_size, ())
    return encoder


def _find_vocab_size(path: Path, config: Mapping[str, Any]) -> int:
    if isinstance(size := config.get("vocab_size"), int):
        return size
    raise CheckpointError(f"{path}/config.json: vocab_size is missing")


def read_tensors(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The headers of all tensors in the folder's safetensors files, by name: `dtype`, `shape` and
    `data_offsets`. Raises CheckpointError for a damaged file."""
    return {
        name: tensor
        for file in sorted(path.glob("*.safetensors"))
        for name, tensor in _read_header(file).items()
        if name != "__metadata__"
    }


def _check_architecture(path: Path, config: Mapping[str, Any], family: str | None) -> None:
    named = config.get("architectures") or []
    if family is None:
        ends = "ForConditionalGeneration" if "text_config" in config else "ForCausalLM"
        good = any(str(a).endswith(("ForCausalLM", ends)) for a in named)
        expected = "a causal language model"
    else:
        known = VERIFIER_FAMILIES[family].architectures
        good = any(a in known for a in named)
        expected = f"a verifier of family {family} ({' or '.join(known)})"
    if not good:
        found = ", ".join(map(str, named)) or "none"
        raise CheckpointError(f"{path} is not {expected}: its architecture is {found}")


def _check_weights(path: Path) -> int | None:
    """Check the weights' files. Returns the rows of the embedding, None if no header has them."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index, files = path / f"{name}.index.json", {name}
        with _refuse_damage(index):
            if index.is_file():
                files = set(read_json(index).get("weight_map", {}).values())
            shards = [path / file for file in sorted(files)]
        if shards and (index.is_file() or shards[0].is_file()):
            break
    else:
        raise CheckpointError(f"{path}: model.safetensors is missing", hint=_PULL_AGAIN)
    rows: int | None = None
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f"{path}: {shard.name} is missing", hint=_PULL_AGAIN)
        if shard.suffix == ".safetensors":
            header = _read_header(shard)
            shapes = (header[n]["shape"] for n in _EMBEDDINGS if n in header)
            rows = next((s[0] for s in shapes if s), rows)
        else:
            _refuse_pointer(shard)
    return rows


def _read_header(file: Path) -> dict[str, Any]:
    """A safetensors file's header, checked against the file's length."""
    _refuse_pointer(file)
    with _refuse_damage(file), file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > 1 << 28:  # safetensors itself allows 100 MB
            raise ValueError("the header is too long")
        header: dict[str, Any] = json.loads(opened.read(length))
        tensors = [t for n, t in header.items() if n != "__metadata__"]
        if not all(isinstance(t["dtype"], str) and isinstance(t["shape"], list) for t in tensors):
            raise ValueError("a tensor has no dtype or shape")
        ends = [t["data_offsets"][1] for t in tensors]
        if 8 + length + max(ends, default=0) != file.stat().st_size:
            raise ValueError("the tensors end elsewhere")
    return header


def _check_tokenizer(path: Path, vocab_size: int, tokens: Sequence[str]) -> None:
    read_json(path / "tokenizer_config.json")
    file = path / "tokenizer.json"
    if not file.is_file() and (path / "tokenizer.model").is_file():
        return  # only SentencePiece, which the engine checks when it loads
    data = read_json(file)
    with _refuse_damage(file):
        vocab = data.get("model", {}).get("vocab", {})
        if not isinstance(vocab, dict):
            vocab = {token[0]: i for i, token in enumerate(vocab)}
        vocabulary = vocab | {a["content"]: a["id"] for a in data.get("added_tokens", [])}
        highest = int(max(vocabulary.values(), default=-1))
    if highest >= vocab_size:
        raise CheckpointError(
            f"{path}: the tokenizer has {highest + 1} tokens, but the model has {vocab_size}",
            hint="the tokenizer belongs to another model; pull the model again",
        )
    for token in tokens:
        # A vocabulary has the token as it is, or as SentencePiece or byte-level BPE write it.
        by_bytes = token.replace(" ", "Ġ").replace("\n", "Ċ")
        spellings = {token, token.replace(" ", "▁"), by_bytes, f"▁{token}", f"Ġ{by_bytes}"}
        if vocabulary.keys().isdisjoint(spellings):
            raise CheckpointError(
                f"{path}: the verifier's vocabulary has no token {token!r}",
                hint="the checkpoint belongs to another family, or its tokenizer to another model",
            )


def read_json(file: Path) -> dict[str, Any]:
    """The object in a model's JSON file. Raises CheckpointError."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent}: {file.name} is missing", hint=_PULL_AGAIN)
    _refuse_pointer(file)
    with _refuse_damage(file):
        return {**json.loads(file.read_text(encoding="utf-8"))}


@contextmanager
def _refuse_damage(file: Path) -> Iterator[None]:
    """Raises CheckpointError where the block can't use what `file` holds."""
    try:
        yield
    except (OSError, ValueError, AttributeError, TypeError, LookupError) as error:
        raise CheckpointError(f"{file} is cut short or damaged", hint=_PULL_AGAIN) from error


def _refuse_pointer(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_POINTER))
    except OSError as error:
        raise CheckpointError(f"can't read {file}: {error.strerror}") from error
    if start == _POINTER:
        raise CheckpointError(
            f"{file} is a git-lfs pointer, not the file itself",
            hint=f"run git lfs pull in {file.parent}",
        )
