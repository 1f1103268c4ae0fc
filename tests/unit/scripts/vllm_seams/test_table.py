"""The table of seams is complete, it says who uses what, and both builds of vLLM agree with it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

import flashedge
from flashedge.engine.platform import CHECKED_MINOR
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.patches import PATCHES
from scripts.vllm_seams.changes import find_changes
from scripts.vllm_seams.importers import find_new_importers, list_replaced_functions, load_importers
from scripts.vllm_seams.record import load_record
from scripts.vllm_seams.seam import Seam, Use
from scripts.vllm_seams.source import VllmSource, find_installed
from scripts.vllm_seams.table import SEAMS
from tests.support.paths import ROOT

PACKAGE = Path(flashedge.__file__).parent
ROOM = PACKAGE / "engine" / "vllm"
NAMES = [name for seam in SEAMS for name in seam.list_full_names()]
OWNERS = {seam.owner for seam in SEAMS}
VLLMS = re.compile(r"vllm(\.\w+)+(:\w+)?|VLLM_\w+")
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
BUILT_BY_KEYWORD = ("SamplingParams", "PoolingParams", "PoolerConfig", "SamplingMetadata")
OF_TORCH = {"_init_amx", "_cdata"}


@pytest.fixture(scope="module")
def installed() -> VllmSource:
    return VllmSource(find_installed())


# ---------------------------------------------------------------- the two builds


def test_the_record_was_made_from_the_cuda_build() -> None:
    record = load_record()
    assert record.distribution == "vllm"
    assert record.version.startswith(CHECKED_MINOR + ".")
    pins = (ROOT / "requirements" / "cuda.txt").read_text(encoding="utf-8")
    assert f"\nvllm=={record.version}\n" in pins
    assert list(record.definitions) == NAMES, "run python -m scripts.vllm_seams record"


def test_the_installed_build_has_every_name_as_the_cuda_build_has_it(installed: VllmSource) -> None:
    """Once by the bytes of the files and once by their syntax trees."""
    record = load_record()
    assert not list(map(str, find_changes(installed, record)))
    unknown = replace(record, files=dict.fromkeys(record.files, ""))
    assert not list(map(str, find_changes(installed, unknown)))


def test_a_replaced_function_is_imported_where_it_was(installed: VllmSource) -> None:
    known = load_importers()
    assert list(known) == list_replaced_functions(), "run python -m scripts.vllm_seams record"
    assert not find_new_importers(installed, known)
    importers = known["vllm.v1.worker.gpu_model_runner:allocate_kv_cache"]
    assert "vllm.v1.worker.gpu_model_runner" in importers
    assert "vllm.v1.worker.gpu.attn_utils" in importers, "the second model runner's"


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: f"{seam.owner} {seam.names[0]}")
def test_the_files_of_a_row_mention_its_names(seam: Seam) -> None:
    assert seam.reason.endswith(".")
    texts = [(ROOM / file).read_text(encoding="utf-8") for file in seam.used_by]
    if seam.use in (Use.WORKINGS, Use.EXACT):
        return  # our code need not name them

    def mentions(text: str, word: str) -> bool:
        return re.search(rf"\b{word}\b", text) is not None

    unused = {name for name in seam.names if not any(mentions(text, name) for text in texts)}
    assert unused <= {"__init__"}
    words = (*seam.names, seam.owner.rpartition(":")[2])
    for file, text in zip(seam.used_by, texts, strict=True):
        assert any(mentions(text, word) for word in words), file


# ---------------------------------------------------------------- what our code uses


def is_listed(name: str) -> bool:
    """Whether "vllm.x:y" is a row's name, or the class or module that a row is about."""
    return name in NAMES or name in OWNERS or name.replace(":", ".") in OWNERS


def list_nodes() -> list[ast.AST]:
    """The syntax of all our files beside vLLM."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in ROOM.rglob("*.py")]
    return [node for tree in trees for node in ast.walk(tree)]


def list_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.startswith("vllm.")]
            yield from (":".join(module.rsplit(".", 1)) for module in modules)


def test_every_import_from_vllm_is_in_the_table() -> None:
    two = ast.parse("from vllm.a import b\nimport vllm.c.d")
    assert list(list_imports(two)) == ["vllm.a:b", "vllm.c:d"], "the search itself finds imports"
    texts = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    missing = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file, text in texts.items()
        if "vllm" in text
        for name in list_imports(ast.parse(text))
        if not is_listed(name)
    }
    assert not missing


def test_every_name_of_vllm_in_a_string_is_in_the_table() -> None:
    """Classes that vLLM is told by their name, patched names, and environment variables."""
    constants = [node.value for node in list_nodes() if isinstance(node, ast.Constant)]
    found = {text for text in constants if isinstance(text, str) and VLLMS.fullmatch(text)}
    names = {
        f"vllm.envs:{text}" if text.startswith("VLLM_")
        else text if ":" in text
        else ":".join(text.rsplit(".", 1))
        for text in found
    }  # fmt: skip
    assert len(names) > 5
    assert not {name for name in names if not is_listed(name)}


def test_every_patch_is_in_the_table() -> None:
    vllms = [patch for patch in PATCHES if patch.target.startswith("vllm.")]
    rows = [seam.list_full_names() for seam in SEAMS if seam.use is Use.REPLACED]
    assert {patch.target for patch in vllms if not patch.adds} <= set(chain.from_iterable(rows))
    assert {patch.target.rpartition(".")[0] for patch in PATCHES if patch.adds} <= OWNERS


def test_what_our_schedulers_use_of_vllms_is_in_the_table(installed: VllmSource) -> None:
    """Methods that ours overrides, attributes of `self` and `super()` that are vLLM's, and what our
    features read of a scheduler."""
    files = ["scheduler.py", "speculation.py", "kv/quota.py"]
    files += [f"determinism/{name}.py" for name in ("passes", "windows")]
    used = set()
    for file in files:
        for node in ast.walk(ast.parse((ROOM / "inside" / file).read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.Attribute(value=ast.Name(id="self" | "scheduler"), attr=name)
                    | ast.Attribute(value=ast.Attribute(attr="_scheduler"), attr=name)
                    | ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name)
                    | ast.FunctionDef(name=name)
                ):
                    used.add(name)
    names = {f"{SCHEDULER}.{name}" for name in used}
    vllms = {name for name in names if installed.find(name, Use.NAMED)}
    assert len(vllms) > 15
    assert vllms <= set(NAMES)


def test_private_attributes_of_other_objects_are_in_the_table() -> None:
    used, defined = set(), set()
    for node in list_nodes():
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                if isinstance(node.ctx, ast.Store):
                    defined.add(name)
            case ast.Attribute(value=value, attr=name) if ast.unparse(value) != "super()":
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
    private = {n for n in used - defined if n.startswith("_") and not n.startswith("__")} - OF_TORCH
    assert "_block_hasher" in private
    assert private <= {name.rpartition(".")[2] for name in NAMES}


@pytest.mark.parametrize("built", BUILT_BY_KEYWORD)
def test_the_keywords_of_a_vllm_object_are_in_the_table(built: str) -> None:
    listed = {name for seam in SEAMS if seam.owner.endswith(f":{built}") for name in seam.names}
    passed = {
        keyword.arg
        for node in list_nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == built
        for keyword in node.keywords
        if keyword.arg
    }
    assert passed
    assert passed <= listed


def test_the_options_of_an_engine_are_in_the_table() -> None:
    given = {"name": "generator", "dtype": "float32", "quantization": "fp8"}
    options = EngineOptions(**given, model=ROOT, max_model_len=64, kv_bytes=1 << 20)  # type: ignore[arg-type]
    listed = {name for seam in SEAMS if seam.owner.endswith("EngineArgs") for name in seam.names}
    assert options.list_args().keys() <= listed
