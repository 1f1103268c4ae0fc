"""Model folders that hold all a checkpoint needs, and no real weights."""

import json
import struct
from pathlib import Path
from typing import Any

TOKENS = ["a", "b", "<extra_0>", "+", "-", "▁ки"]


def write_model(
    folder: Path,
    architecture: str = "Qwen2ForCausalLM",
    *,
    vocab_size: int = 8,
    rows: int | None = None,
    tokens: list[str] = TOKENS,
    positions: int = 32768,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **sizes}))
    (folder / "tokenizer_config.json").write_text("{}")
    vocabulary = {"model": {"vocab": {t: i for i, t in enumerate(tokens)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    write_safetensors(folder / "model.safetensors", rows or vocab_size)
    return folder


def write_safetensors(file: Path, rows: int) -> None:
    size = rows * 2 * 4
    tensor = {"dtype": "F32", "shape": [rows, 2], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)


def write_hub_model(hub: Path, source: str, commit: str, architecture: str, **kwargs: Any) -> Path:
    """A model as huggingface_hub lays it out: blobs, links to them in a snapshot, refs/main."""
    top = hub / f"models--{source.replace('/', '--')}"
    plain = write_model(top / "plain", architecture, **kwargs)
    snapshot = top / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (top / "blobs").mkdir()
    for number, file in enumerate(sorted(plain.iterdir())):
        blob = top / "blobs" / f"{number:040x}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../..") / "blobs" / blob.name)
    plain.rmdir()
    (top / "refs").mkdir()
    (top / "refs" / "main").write_text(commit)
    return snapshot
