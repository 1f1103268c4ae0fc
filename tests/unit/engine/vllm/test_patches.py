"""The table of the names that FlashEdge adds to vLLM or replaces in it, against this vLLM."""

import ast
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flashedge.engine.vllm
from flashedge.engine.vllm.inside import patches
from flashedge.engine.vllm.inside.patches import PATCHES, Patch, ProcessKind
from flashedge.errors import ConfigError

FOLDER = Path(flashedge.engine.vllm.__file__).parent
DAEMON = ProcessKind.DAEMON


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("fake_vllm")
    exec("def start(): ...\nclass Core: ...\ndef ours(): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, "fake_vllm", module)
    return module


def apply(target: str, *, adds: bool = False, process: ProcessKind = DAEMON) -> None:
    names = {"target": f"fake_vllm:{target}", "replacement": "fake_vllm:ours"}
    patches.apply_patches(process, (Patch(process=DAEMON, adds=adds, reason="A test.", **names),))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target)
def test_this_vllm_has_what_a_patch_replaces_and_lacks_what_it_adds(patch: Patch) -> None:
    owner, name = patches.find_owner(patch)
    replacement = pkgutil.resolve_name(patch.replacement)
    assert inspect.isfunction(replacement)
    assert replacement.__module__.startswith("flashedge.engine.vllm.")
    assert patch.reason.endswith(".")
    assert getattr(owner, name, None) is replacement or hasattr(owner, name) != patch.adds
    if not patch.adds:
        ours, vllms = map(inspect.signature, (replacement, find_original(patch)))
        assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
            (p.name, p.kind, p.default) for p in vllms.parameters.values()
        ], "it accepts the calls that vLLM makes"


def find_original(patch: Patch) -> Any:
    """vLLM's own object, by way of the module that the patched one imports it from: another test
    may have applied the patch."""
    module, _, name = patch.target.partition(":")
    if "." in name:  # of a class, which only an engine process changes
        found = pkgutil.resolve_name(patch.target)
        return found.fget if isinstance(found, property) else found
    source = inspect.getsource(pkgutil.resolve_name(module))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            origin = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            return pkgutil.resolve_name(f"{origin}:{name}")
    raise AssertionError(f"{module} does not import {name}")


def test_no_process_patches_a_target_twice() -> None:
    targets = [(patch.process, patch.target) for patch in PATCHES]
    assert len(set(targets)) == len(targets)


def test_a_process_applies_only_its_own_patches_and_can_do_so_again(fake_vllm: ModuleType) -> None:
    apply("start", process=ProcessKind.WORKER)
    assert fake_vllm.start is not fake_vllm.ours
    for _ in range(2):
        apply("start")
        apply("Core.added", adds=True)
    assert fake_vllm.start is fake_vllm.Core.added is fake_vllm.ours


@pytest.mark.parametrize(
    ("adds", "problem", "targets"),
    [
        (False, "does not have", ("stop", "Core.step", "Gone.step")),
        (True, "does not have", ("Gone.step",)),
        (True, "already has", ("start", "Core.__init__")),
    ],
)
@pytest.mark.usefixtures("fake_vllm")
def test_a_patch_for_another_vllm_is_refused(adds: bool, problem: str, targets: Any) -> None:
    for target in targets:
        with pytest.raises(ConfigError, match=f"{problem} fake_vllm:{target}: it is another vLLM"):
            apply(target, adds=adds)


def find_assignments(tree: ast.Module) -> Iterator[str]:
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] == "vllm"
    }
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute):
                name = ast.unparse(target)
                if name.split(".")[0] in imported:
                    yield name


def test_no_other_module_patches_vllm() -> None:
    found = {
        f"{file.relative_to(FOLDER)}: {target}"
        for file in FOLDER.rglob("*.py")
        for target in find_assignments(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert not found
    patched = ast.parse("import vllm.utils as utils\nutils.start = 1\nours.start = 2")
    assert list(find_assignments(patched)) == ["utils.start"], "the search itself finds patches"
