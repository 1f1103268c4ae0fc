"""How much is there to read? Counts lines, settings, options, files of a strategy and circles.

    python -m scripts.house_size

Each row has its aim; the exit code is 1 when one is missed. The last line is JSON.
"""

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from flashedge.cli.solve.command import solve
from flashedge.config import Config

ROOT = Path(__file__).parents[1]
PRODUCT, LAB, TESTS = ("flashedge", "profiler", "tui"), ("scripts/lab",), ("tests",)
PAPERS = "## Where the papers are"
"""The heading of the table in docs/architecture.md whose rows are one idea each."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and its aim."""

    what: str
    figure: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool:
        above = self.at_least is None or self.figure >= self.at_least
        return above and (self.at_most is None or self.figure <= self.at_most)


def main() -> None:
    rows = measure()
    for row in rows:
        aim = f"≥ {row.at_least}" if row.at_most is None else f"≤ {row.at_most:,}"
        print(f"{row.what:58} {row.figure:>8,} {aim:>9}{'' if row.is_met else '  missed'}")
    print(json.dumps({row.what: row.figure for row in rows}))
    sys.exit(not all(row.is_met for row in rows))


def measure() -> list[Row]:
    """Every figure, from the files that git tracks."""
    product, lab, tests = (_list_files(tops) for tops in (PRODUCT, LAB, TESTS))
    code, docstrings = (sum(parts) for parts in zip(*map(_count_parts, product), strict=True))
    graph = grimp.build_graph("flashedge", cache_dir=None)
    imports = {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }
    beam, mcts = (
        _find_search_files(graph, f"flashedge.search.strategies.{name}")
        for name in ("beam", "mcts")
    )
    named = _count_ideas()
    circles, folder_circles = _find_circles(imports), _find_folder_circles(imports)
    for circle in [*circles, *folder_circles]:
        print("circle:", ", ".join(circle))
    return [
        Row("lines of the product", _count_lines(product), 47_000),
        Row("lines of the product and the lab", _count_lines([*product, *lab]), 52_000),
        Row("lines of the tests of both", _count_lines(tests), 46_000),
        Row("docstrings, % of the code", round(100 * docstrings / code, 1), at_least=18),
        Row("settings", len(dataclasses.fields(Config)), 32),
        Row("options and arguments of solve", len(inspect.signature(solve).parameters), 26),
        Row("files to read for beam", len(beam), 6),
        Row("files to read for MCTS", len(mcts), 8),
        Row("lines of the longest of them", max(_count_lines([f]) for f in beam | mcts), 500),
        Row(
            "most ideas of the papers in one of them", max(named.get(f, 0) for f in beam | mcts), 1
        ),
        Row("circles of imports between modules", len(circles), 0),
        Row("circles between the parts of a folder", len(folder_circles), 0),
    ]


def _list_files(tops: Iterable[str]) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", *(f"{top}/*.py" for top in tops)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [file for name in names if (file := ROOT / name).is_file()]


def _count_lines(files: Iterable[Path]) -> int:
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def _count_parts(file: Path) -> tuple[int, int]:
    """The lines of code, and those of docstrings."""
    text = file.read_text(encoding="utf-8")
    strings = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    docstrings = {
        line for at in strings for line in range(at.lineno, (at.end_lineno or at.lineno) + 1)
    }
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with file.open("rb") as stream:
        code = {
            line
            for token in tokenize.tokenize(stream.readline)
            if token.type not in ignored | {tokenize.ENCODING, tokenize.ENDMARKER}
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(code - docstrings), len(docstrings)


def _find_search_files(graph: grimp.ImportGraph, strategy: str) -> set[Path]:
    """The files of `search/` that a reader of the strategy meets."""
    met = {strategy, *graph.find_upstream_modules(strategy)}
    files = {ROOT / (module.replace(".", "/") + ".py") for module in met}
    return {
        file for file in files if file.is_relative_to(ROOT / "flashedge/search") and file.is_file()
    }


def _count_ideas() -> Mapping[Path, int]:
    """For each file in the table of the papers, the rows that name it."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.split(PAPERS)[1].split("\n## ")[0].splitlines()
    found: dict[Path, int] = {}
    for row in rows:
        for name in set(re.findall(r"`([\w/]+\.py)`", row)):
            found[ROOT / "flashedge" / name] = found.get(ROOT / "flashedge" / name, 0) + 1
    return found


def _find_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others of the group."""
    names = list(imports)
    at = {name: number for number, name in enumerate(names)}
    edges = csr_array((len(names), len(names)), dtype=bool).tolil()
    for name, near in imports.items():
        for other in near & at.keys() - {name}:
            edges[at[name], at[other]] = True
    groups: dict[int, list[str]] = {}
    for name, group in zip(names, connected_components(edges, connection="strong")[1], strict=True):
        groups.setdefault(int(group), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _find_folder_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The circles between the files and folders that stand in one folder, over all folders."""
    circles = []
    for folder in sorted({module.rpartition(".")[0] for module in imports if "." in module}):
        parts: dict[str, set[str]] = {}
        for module, near in imports.items():
            if part := _find_part(module, folder):
                parts.setdefault(part, set()).update(
                    filter(None, (_find_part(n, folder) for n in near))
                )
        circles += [[f"{folder}: {part}", *others] for part, *others in _find_circles(parts)]
    return circles


def _find_part(module: str, folder: str) -> str | None:
    """What stands in the folder and holds the module."""
    if not module.startswith(folder + "."):
        return None
    return module.removeprefix(folder + ".").partition(".")[0]


if __name__ == "__main__":
    main()
