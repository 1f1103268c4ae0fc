"""Reads vLLM's Python source without importing it: where a name is defined, and what it looks like.

Importing vLLM takes many seconds, and a name that has moved would end the import at the first
place. The source can come from an installed package, an unpacked wheel or the wheel itself.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from importlib.util import resolve_name

from flashedge.engine.vllm.seams.seam import Use

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
    members: Mapping[str, str] = field(default_factory=dict)
    """Of a class that we subclass: the digest of each member."""

    @property
    def module(self) -> str:
        """The module that defines the name."""
        return _name_module(self.files[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """A definition that was found."""

    tree: ast.AST
    modules: tuple[str, ...]
    """The module that has the name, and those that it is imported from in turn."""


class VllmSource:
    """The Python files of one vLLM."""

    def __init__(self, root: Traversable) -> None:
        """root: the folder, or the wheel as a `zipfile.Path`, that the package `vllm` lies in."""
        self._root = root
        self._modules: dict[str, ast.Module] = {}
        self._texts: dict[str, str] = {}
        self._indexes: dict[ast.AST, dict[str, ast.stmt]] = {}
        """By module or class: its definitions by name."""

    def hash_file(self, path: str) -> str | None:
        """SHA-256 of a file, by its path such as "vllm/envs.py". None if there is no such file."""
        file = self._root / path
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None

    def find(self, name: str, use: Use) -> Definition | None:
        """Find what `use` depends on of "module:Name" or "module:Class.member", None if it is gone.

        A name that its module imports from elsewhere in vLLM is followed. An attribute that a
        method sets counts as a member: `self.member = ...`.
        """
        node = self._locate(name)
        if node is None:
            return None
        members = {}
        if use is Use.SUBCLASSED and isinstance(node.tree, ast.ClassDef):
            members = {key: _digest(tree) for key, tree in self._list_members(node.tree).items()}
        return Definition(
            files=tuple(self._find_file(module) or "" for module in node.modules),
            signature=_describe(node.tree, whole=use is Use.EXACT),
            digest="" if use in (Use.NAMED, Use.SUBCLASSED) else _digest(node.tree),
            members=members,
        )

    def get_text(self, name: str) -> str:
        """The source text of a definition. Empty if there is none, or for a module."""
        node = self._locate(name)
        if node is None or isinstance(node.tree, ast.Module):
            return ""
        return ast.get_source_segment(self._texts[node.modules[-1]], node.tree, padded=True) or ""

    def list_importers(self, module: str, name: str) -> tuple[str, ...]:
        """The modules that import `name` from `module`. Reads all files, which takes a second."""
        importers = []
        for path in _list_python_files(self._root / "vllm", "vllm"):
            if name.encode() not in (self._root / path).read_bytes():
                continue
            importer = _name_module(path)
            imports = (n for n in ast.walk(self._parse(importer)) if isinstance(n, ast.ImportFrom))
            if any(
                alias.name == name and self._resolve_origin(importer, node) == module
                for node in imports
                for alias in node.names
            ):
                importers.append(importer)
        return tuple(sorted(importers))

    # ------------------------------------------------------------ files and modules

    def _find_file(self, module: str) -> str | None:
        stem = module.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if (self._root / path).is_file():
                return path
        return None

    def _parse(self, module: str) -> ast.Module:
        if module not in self._modules:
            path = self._find_file(module)
            assert path is not None, "the caller has found the file"
            self._texts[module] = (self._root / path).read_text(encoding="utf-8")
            self._modules[module] = ast.parse(self._texts[module])
        return self._modules[module]

    # ------------------------------------------------------------ definitions

    def _locate(self, name: str) -> _Located | None:
        module, _, path = name.partition(":")
        first, _, member = path.partition(".")
        node = self._locate_in_module(module, first)
        if node is None or not member:
            return node
        members = self._list_members(node.tree) if isinstance(node.tree, ast.ClassDef) else {}
        return _Located(tree=members[member], modules=node.modules) if member in members else None

    def _locate_in_module(self, module: str, name: str) -> _Located | None:
        if self._find_file(module) is None:
            return None
        tree = self._parse(module)
        if tree not in self._indexes:
            self._indexes[tree] = _index_definitions(tree.body)
        found = self._indexes[tree].get(name)
        origin, original, below = module, name, f"{module}.{name}"
        if isinstance(found, ast.ImportFrom):
            origin = self._resolve_origin(module, found)
            original = next(a.name for a in found.names if (a.asname or a.name) == name)
        elif found is not None:
            return _Located(tree=found, modules=(module,))
        if (origin, original) != (module, name):
            node = self._locate_in_module(origin, original)
        elif self._find_file(below):  # also `from . import name`
            node = _Located(tree=self._parse(below), modules=(below,))
        else:
            return None
        return node and _Located(tree=node.tree, modules=(module, *node.modules))

    def _list_members(self, owner: ast.ClassDef) -> dict[str, ast.stmt]:
        if owner not in self._indexes:
            self._indexes[owner] = _index_members(owner)
        return self._indexes[owner]

    def _resolve_origin(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that an import statement names."""
        is_package = (self._find_file(module) or "").endswith("/__init__.py")
        package = module if is_package else module.rpartition(".")[0]
        return resolve_name("." * node.level + (node.module or ""), package)


# ---------------------------------------------------------------- syntax trees


def _name_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _list_python_files(folder: Traversable, path: str) -> Iterator[str]:
    for entry in folder.iterdir():
        below = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _list_python_files(entry, below)
        elif entry.name.endswith(".py"):
            yield below


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


def _digest(node: ast.AST) -> str:
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
