"""Every script still finds what it imports from the product and from other scripts.

The files are read, not run: importing them all takes torch, transformers and vLLM with them. So
imports inside functions are checked too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

OURS = ("flashedge", "scripts", "tests")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_file(module: str) -> Path | None:
    """The file of one of our modules; None if there is none."""
    place = ROOT / module.replace(".", "/")
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def iter_names(node: ast.AST) -> Iterator[str]:
    """The names that a module's statements bind, without those inside functions and classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child.name
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in child.names)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        else:
            yield from iter_names(child)


@cache
def list_names(file: Path) -> frozenset[str]:
    return frozenset(iter_names(ast.parse(file.read_text(encoding="utf-8"))))


def iter_missing(source: str) -> Iterator[str]:
    """What a source imports from our packages though it is not there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            yield from (m for m in modules if m.split(".")[0] in OURS and find_file(m) is None)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            assert node.module is not None
            file = find_file(node.module)
            names = list_names(file) if file is not None else frozenset()
            wholes = (
                f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names
            )
            yield from (whole for whole in wholes if find_file(whole) is None)


def test_every_script_finds_what_it_imports() -> None:
    scripts = sorted((ROOT / "scripts").rglob("*.py"))
    assert len(scripts) > 80
    missing = {
        str(script.relative_to(ROOT)): found
        for script in scripts
        if (found := [*iter_missing(script.read_text(encoding="utf-8"))])
    }
    assert missing == {}


def test_missing_names_are_found_wherever_they_are_imported() -> None:
    source = """
import flashedge.nowhere
import json, flashedge.errors
from flashedge.errors import FlashEdgeError, Nonsense
from flashedge.cli import runs, output
if True:
    from scripts.bench.daemon import nothing as something
def late():
    from flashedge.nowhere.at_all import x
"""
    assert sorted(iter_missing(source)) == [
        "flashedge.errors.Nonsense",
        "flashedge.nowhere",
        "flashedge.nowhere.at_all.x",
        "scripts.bench.daemon.nothing",
    ]
