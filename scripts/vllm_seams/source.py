"""Reads vLLM's Python source without importing it: where a name is defined, and what it looks like.

Importing vLLM takes many seconds, and a name that has moved would end the import at the first
place. The source can come from an installed package, an unpacked wheel or the wheel itself.
"""

import ast
import copy
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from importlib.util import resolve_name
from pathlib import Path

from scripts.vllm_seams.seam import Use

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_IGNORED_FIELDS = {"ctx", "kind", "type_comment"}
"""Fields of a syntax tree that say nothing about what the code does."""
DIGEST_LETTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a name of vLLM looks like. Comments, docstrings and formatting leave no trace in it."""

    files: tuple[str, ...]
    """The file of the module that has the name, and those that it imports it from in turn."""
    signature: str
    """What code outside sees: parameters without their types, bases, fields, or a type."""
    digest: str = ""
    """Hash of the whole definition. Empty where only the signature matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A definition that was found."""

    tree: ast.AST
    modules: tuple[str, ...]
    """The module that has the name, and those that it is imported from in turn."""


def find_installed() -> Path:
    """Find the folder that the installed package `vllm` lies in. It is not imported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("vLLM's files are not installed: run scripts/setup.sh")
    return Path(spec.submodule_search_locations[0]).parent


class VllmSource:
    """The Python files of one vLLM."""

    def __init__(self, root: Traversable) -> None:
        """root: the folder, or the wheel as a `zipfile.Path`, that the package `vllm` lies in."""
        self.root = root
        self._modules: dict[str, ast.Module] = {}
        self._indexes: dict[ast.AST, dict[str, ast.stmt]] = {}
        """By module or class: its definitions by name."""

    def hash_file(self, path: str) -> str | None:
        """SHA-256 of a file, by its path such as "vllm/envs.py". None if there is no such file."""
        file = self.root / path
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None

    def find(self, name: str, use: Use) -> Definition | None:
        """Find what `use` depends on of "module:Name" or "module:Class.member", None if it is gone.

        A name that its module imports from elsewhere in vLLM is followed. An attribute that a
        method sets counts as a member: `self.member = ...`.
        """
        node = self.locate(name)
        if node is None:
            return None
        return Definition(
            files=tuple(self.find_file(module) or "" for module in node.modules),
            signature=_describe(node.tree, whole=use is Use.EXACT),
            digest="" if use is Use.NAMED else digest_tree(node.tree),
        )

    # ------------------------------------------------------------ files and modules

    def find_file(self, module: str) -> str | None:
        """The path of a module below the root, such as "vllm/envs.py"."""
        stem = module.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if (self.root / path).is_file():
                return path
        return None

    def parse(self, module: str) -> ast.Module:
        """Parse a module that is there."""
        if module not in self._modules:
            path = self.find_file(module)
            assert path is not None, "the caller has found the file"
            text = (self.root / path).read_text(encoding="utf-8")
            self._modules[module] = ast.parse(text)
        return self._modules[module]

    # ------------------------------------------------------------ definitions

    def locate(self, name: str) -> Located | None:
        """Locate "module:Name" or "module:Class.member"."""
        module, _, path = name.partition(":")
        first, _, member = path.partition(".")
        node = self._locate_in_module(module, first)
        if node is None or not member:
            return node
        members = self.list_members(node.tree) if isinstance(node.tree, ast.ClassDef) else {}
        return Located(tree=members[member], modules=node.modules) if member in members else None

    def _locate_in_module(self, module: str, name: str) -> Located | None:
        if self.find_file(module) is None:
            return None
        tree = self.parse(module)
        if tree not in self._indexes:
            self._indexes[tree] = _index_definitions(tree.body)
        found = self._indexes[tree].get(name)
        origin, original, below = module, name, f"{module}.{name}"
        if isinstance(found, ast.ImportFrom):
            origin = self.resolve_origin(module, found)
            original = next(a.name for a in found.names if (a.asname or a.name) == name)
        elif found is not None:
            return Located(tree=found, modules=(module,))
        if (origin, original) != (module, name):
            node = self._locate_in_module(origin, original)
        elif self.find_file(below):  # also `from . import name`
            node = Located(tree=self.parse(below), modules=(below,))
        else:
            return None
        return node and Located(tree=node.tree, modules=(module, *node.modules))

    def list_members(self, owner: ast.ClassDef) -> dict[str, ast.stmt]:
        """By name: what a class of this vLLM defines itself, and what its methods set."""
        if owner not in self._indexes:
            self._indexes[owner] = _index_members(owner)
        return self._indexes[owner]

    def resolve_origin(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import statement names."""
        is_package = (self.find_file(module) or "").endswith("/__init__.py")
        package = module if is_package else module.rpartition(".")[0]
        return resolve_name("." * node.level + (node.module or ""), package)


# ---------------------------------------------------------------- syntax trees


def _iterate_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, class or function, those under `if` and the like too."""
    for node in body:
        yield node
        if not isinstance(node, ast.ClassDef | _Function):
            for block in ("body", "orelse", "finalbody"):
                yield from _iterate_statements(getattr(node, block, ()))


def _index_definitions(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """By name: the class or function, or else the first assignment or import."""
    found: dict[str, ast.stmt] = {}
    for node in _iterate_statements(body):
        if isinstance(node, ast.ClassDef | _Function):
            if not _is_overload_or_setter(node):
                found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, node)
    return found


def _index_members(owner: ast.ClassDef) -> dict[str, ast.stmt]:
    """By name: what a class defines itself, and what its methods set on `self`."""
    members = _index_definitions(owner.body)
    for method in [node for node in owner.body if isinstance(node, _Function)]:
        for node in _iterate_statements(method.body):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    match target:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name):
                            members.setdefault(name, node)
    return members


def _is_overload_or_setter(node: ast.ClassDef | _Function) -> bool:
    return any(
        ast.unparse(decorator).endswith(("overload", ".setter"))
        for decorator in node.decorator_list
    )


def _describe(node: ast.AST, *, whole: bool) -> str:
    match node:
        case ast.ClassDef():
            bases = [*map(ast.unparse, node.bases)]
            bases += [f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords]
            fields = f": {', '.join(_list_fields(node))}" if whole else ""
            return f"{_describe_decorators(node)}class({', '.join(bases)}){fields}"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            start = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
            return f"{_describe_decorators(node)}{start}({_describe_parameters(node.args)})"
        case ast.AnnAssign():
            return ast.unparse(node.annotation)
        case ast.Assign():
            return ast.unparse(node.value) if whole else "assigned"
        case _:
            return "module"


def _describe_decorators(node: ast.ClassDef | _Function) -> str:
    return "".join(f"@{ast.unparse(decorator)} " for decorator in node.decorator_list)


def _describe_parameters(arguments: ast.arguments) -> str:
    """Names, order, kinds and defaults."""
    bare = copy.deepcopy(arguments)
    for argument in ast.walk(bare):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(bare)


def _list_fields(owner: ast.ClassDef) -> Iterator[str]:
    """The fields of a struct, or the members of an enumeration, in order. "=": has a default."""
    for node in owner.body:
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target) + ("=" if node.value else "")
        elif isinstance(node, ast.Assign):
            yield from map(ast.unparse, node.targets)


def digest_tree(node: ast.AST) -> str:
    """Hash a definition without its comments, docstrings and formatting."""
    return hashlib.sha256(_serialize(node).encode()).hexdigest()[:DIGEST_LETTERS]


def _serialize(value: object) -> str:
    """Write a syntax tree without comments, docstrings and positions.

    `ast.dump` would write empty fields too, which differ between versions of Python.
    """
    if isinstance(value, list):
        return "[" + ",".join(_serialize(item) for item in value if not _is_docstring(item)) + "]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = (
        f"{name}={_serialize(found)}"
        for name, found in ast.iter_fields(value)
        if name not in _IGNORED_FIELDS and found is not None and found != []
    )
    return f"{type(value).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    """Whether a statement is only a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
