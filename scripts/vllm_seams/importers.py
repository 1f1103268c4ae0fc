"""The modules of vLLM that import a function that FlashEdge replaces. A new one isn't reached."""

import ast
import json
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

from scripts.vllm_seams.seam import Use
from scripts.vllm_seams.source import VllmSource
from scripts.vllm_seams.table import SEAMS

FILE = Path(__file__).with_name("importers.json")
"""Those of the vLLM that FlashEdge was checked with, by the function's full name."""


def load_importers(file: Path = FILE) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def save_importers(found: Mapping[str, list[str]], file: Path = FILE) -> None:
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def find_importers(source: VllmSource) -> dict[str, list[str]]:
    """By name of each function that we replace. Reads all of vLLM's files, which takes seconds."""
    return {name: list_importers(source, name) for name in list_replaced_functions()}


def find_new_importers(source: VllmSource, known: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Those that are not known, for the functions that have any."""
    new = {
        name: [module for module in modules if module not in known[name]]
        for name, modules in find_importers(source).items()
    }
    return {name: modules for name, modules in new.items() if modules}


def list_replaced_functions() -> list[str]:
    """Full names of the functions of modules that we replace."""
    replaced = [seam for seam in SEAMS if seam.use is Use.REPLACED and ":" not in seam.owner]
    return [name for seam in replaced for name in seam.list_full_names()]


def list_importers(source: VllmSource, name: str) -> list[str]:
    """The modules that import "module:function" from where it is defined."""
    located = source.locate(name)
    if located is None:
        return []
    origin, function = located.modules[-1], name.rpartition(":")[2]
    importers = []
    for path in _list_python_files(source.root / "vllm", "vllm"):
        if function.encode() not in (source.root / path).read_bytes():
            continue
        importer = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        imports = (n for n in ast.walk(source.parse(importer)) if isinstance(n, ast.ImportFrom))
        if any(
            alias.name == function and source.resolve_origin(importer, node) == origin
            for node in imports
            for alias in node.names
        ):
            importers.append(importer)
    return sorted(importers)


def _list_python_files(folder: Traversable, path: str) -> Iterator[str]:
    for entry in folder.iterdir():
        below = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _list_python_files(entry, below)
        elif entry.name.endswith(".py"):
            yield below
