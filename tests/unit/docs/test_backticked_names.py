"""A name in backticks exists: a file, a module, a class, or something that these define.

All pages and all source are read. What a name looks like decides how it is looked up:

- A path (`runtime/run.py`, `scripts/lab/`, `run.py`) must be the end of a path of the checkout,
  or a file of an installed library. So must a path without backticks that starts at the top of the
  checkout, in tests too.
- A dotted name (`runtime.run.RunStatus`, `Run.cancel`) must lead from the end of a module's name,
  or from a class, to something that is defined there, or start with a module or a class of another
  library that the project imports. Python's own modules are asked.
- A name of capitals and small letters (`RunStatus`) must be a class of the project, or a name that
  the project takes from another library (`vllm_seams.table` has those of vLLM).

Whatever else stands in backticks is an option, a value or a command, or a file of a user's data.
Logs are left out: their names were right on their day. ADRs are not: an accepted one holds today.
"""

import ast
import builtins
import importlib
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scripts.vllm_seams.table import SEAMS
from tests.support.paths import ROOT

TOPS = ("docs", "flashedge", "profiler", "scripts", "tests", "tui")
HISTORY = ("CHANGELOG.md", "scripts/train_pair/LOG.md")
NOT_LOOKED_UP = {
    # keys of JSON and TOML, a group of entry points, values, an event of ASGI
    *("flashedge.seed", "flashedge.strategies", "flashedge.usage", "http.response.start"),
    *("default_generation_settings.n_ctx", "meta.n_ctx", "metadata.user_id", "options.mcts"),
    *("options.probed_cot", "output_config.format", "prompt_tokens_details.cached_tokens"),
    "thinking.budget_tokens",
    # architectures, which checkpoints name
    *("Qwen2ForPrmModel", "Qwen2ForProcessRewardModel", "Qwen2ForSequenceClassification"),
    # names of libraries that the project does not import by them: of LiteLLM, of Instructor, of
    # vLLM (which ADR 12 decides against), of its second runner, and one that patches.py replaces
    *("ContextWindowExceededError", "Mode.TOOLS", "AsyncScheduler", "LogitsContext.pos"),
    "tqdm.display",
}
FILES = tuple(
    subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
)
SOURCE = [file for file in FILES if file.endswith(".py") and file.startswith(TOPS)]

FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
BACKTICKED = re.compile(r"(?<!`)`([^`\s]+)`(?!`)")
FROM_THE_TOP = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOPS)})/[\w./-]*\w\.(?:py|md|sh)\b")
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*|\w+\.(?:py|sh)")
DATA = re.compile(r".*\.(?:gz|h|html|json|jsonl|log|md|png|pt|safetensors|svg|toml)")
DOTTED = re.compile(r"((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?:\(\))?")
CAMEL = re.compile(r"_?[A-Z]\w*[a-z]\w*")

CLASS = re.compile(r"^ *class (\w+)|^(_?[A-Z]\w*[a-z]\w*) = ", re.MULTILINE)
IMPORT = re.compile(r"^ *import (\w+)", re.MULTILINE)
IMPORT_FROM = re.compile(r"^ *from (\w+)\S* import (\([^)]*\)|.*)", re.MULTILINE)


def find_names(file: str) -> Iterator[str]:
    """Yield what is to be looked up in a file."""
    text = FENCE.sub("", _read(file))
    yield from FROM_THE_TOP.findall(text)
    if not file.startswith("tests/"):
        yield from BACKTICKED.findall(text)


@cache
def is_known(name: str) -> bool:
    """Whether `name` exists, or is of no kind that is looked up."""
    if name in NOT_LOOKED_UP:
        return True
    if PATH.fullmatch(name):
        return _is_path(name.rstrip("/"))
    if DATA.fullmatch(name):
        return True
    if match := DOTTED.fullmatch(name):
        parts = match[1].split(".")
        return _is_ours(parts) or _is_of_a_library(parts)
    if CAMEL.fullmatch(name):
        return name in _project().classes or name in _project().foreign_names
    return True


def _is_path(name: str) -> bool:
    ends, folders = _path_ends()
    name = re.sub("^flashedge/(?=tui|profiler)", "", name)  # links
    first = name.split("/")[0]
    if name in ends or f"{name}.py" in ends:
        return True
    if first in _project().foreign_modules and (spec := importlib.util.find_spec(first)):
        return any((Path(home).parent / name).exists() for home in spec.submodule_search_locations)
    return first not in folders and not name.endswith((".py", ".sh"))


@cache
def _path_ends() -> tuple[frozenset[str], frozenset[str]]:
    """Every path of the checkout, whole and without its first folders; and the folders' names."""
    ends, folders = set(), set()
    for file in FILES:
        parts = Path(file).parts
        folders.update(parts[:-1])
        for last in range(1, len(parts) + 1):
            ends.update("/".join(parts[first:last]) for first in range(last))
    return frozenset(ends), frozenset(folders)


class Project:
    """The modules and classes of the source, and what it imports of other libraries."""

    def __init__(self) -> None:
        self.modules: dict[str, list[str]] = defaultdict(list)
        """The files of modules, by each end of their dotted names."""
        self.classes: dict[str, list[str]] = defaultdict(list)
        """The files that define a class, or a type, of this name."""
        self.foreign_modules: set[str] = set()
        self.foreign_names = set(dir(builtins))
        for file in SOURCE:
            parts = [part for part in Path(file).with_suffix("").parts if part != "__init__"]
            for first in range(len(parts)):
                self.modules[".".join(parts[first:])].append(file)
            text = _read(file)
            if not file.startswith("tests/"):
                for name in CLASS.findall(text):
                    self.classes["".join(name)].append(file)
            whole_modules = [(module, "") for module in IMPORT.findall(text)]
            for module, names in [*whole_modules, *IMPORT_FROM.findall(text)]:
                if module not in TOPS:
                    self.foreign_modules.add(module)
                    self.foreign_names.update(re.findall(r"\w+", names))
        for seam in SEAMS:
            self.foreign_names.update((seam.owner.rpartition(":")[2], *seam.names))


@cache
def _project() -> Project:
    return Project()


@cache
def _read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def _parse(file: str) -> ast.Module:
    return ast.parse(_read(file))


def _find_classes(name: str) -> Iterator[ast.ClassDef]:
    for file in _project().classes.get(name, ()):
        for node in ast.walk(_parse(file)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield node


def _is_ours(parts: list[str]) -> bool:
    if parts[:2] in (["flashedge", "tui"], ["flashedge", "profiler"]):
        parts = parts[1:]
    for cut in range(len(parts), 0, -1):
        for file in _project().modules.get(".".join(parts[:cut]), ()):
            if _leads(_parse(file), parts[cut:]):
                return True
    return any(_leads(found, parts[1:]) for found in _find_classes(parts[0]))


def _leads(owner: ast.Module | ast.ClassDef, parts: list[str]) -> bool:
    """Whether the first part is a member of `owner`, the second a member of that, and so on."""
    if not parts:
        return True
    member = dict(_list_members(owner)).get(parts[0])
    if isinstance(member, ast.ClassDef):
        return _leads(member, parts[1:])
    return member is not None and len(parts) == 1


def _list_members(owner: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(owner, ast.ClassDef):
        for base in owner.bases:
            for found in _find_classes(ast.unparse(base).split("[")[0]):
                yield from _list_members(found)
        for node in ast.walk(owner):  # self.name = …
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr, node
    for node in owner.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node
            case ast.Assign():
                names = [name for target in node.targets for name in ast.walk(target)]
                yield from ((name.id, node) for name in names if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node


def _is_of_a_library(parts: list[str]) -> bool:
    if parts[0] in sys.stdlib_module_names:
        found = importlib.import_module(parts[0])
        return all((found := getattr(found, part, None)) is not None for part in parts[1:])
    if CAMEL.fullmatch(parts[0]):
        return parts[0] in _project().foreign_names and parts[0] not in _project().classes
    return parts[0] in _project().foreign_modules


def test_every_name_in_backticks_exists() -> None:
    kinds = (".md", ".py", ".sh")
    missing = {
        f"{file}: {name}"
        for file in FILES
        if file.endswith(kinds) and file not in HISTORY and not (ROOT / file).is_symlink()
        for name in find_names(file)
        if not is_known(name)
    }
    assert not missing, "these do not exist:\n" + "\n".join(sorted(missing))


EXISTING = (
    *("runtime/run.py", "run.py", "scripts/lab/", "vllm/v1/worker/block_table.py"),
    *("runtime.run", "runtime.run.RunStatus", "flashedge.tui", "Driver.run", "asyncio.sleep"),
    *("torch.zeros", "RequestOutput.add", "RunStarted", "AsyncLLM", "runs/mcts/", "1/2", "n"),
)
MISSING = (
    *("runtime/line.py", "line_of_runs.py", "scripts/laboratory/", "vllm/v1/worker/no_table.py"),
    *("runtime.line", "runtime.run.Line", "flashedge.dashboard", "Driver.drive_away"),
    *("asyncio.dream", "NoSuchRun", "NoSuchRun.emit"),
)


def test_what_exists_is_known_and_what_is_gone_is_not() -> None:
    assert [name for name in (*EXISTING, *MISSING) if is_known(name)] == list(EXISTING)
