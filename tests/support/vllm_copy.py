"""A copy of the files of the installed vLLM that FlashEdge depends on, to be edited by a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.vllm_seams.record import load_record
from scripts.vllm_seams.source import find_installed


def copy_vllm(target: Path) -> Path:
    """Copy the files that the record names to `target`, and return it."""
    installed = find_installed()
    for path in load_record().files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / path, target / path)
    return target


def edit(folder: Path, path: str, old: str, new: str) -> None:
    """Replace `old`, which must stand in the file once, by `new`."""
    file = folder / path
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    file.write_text(text.replace(old, new), encoding="utf-8")
