"""Writes what docs/architecture.md says of the code in figures: its layers and its size.

python -m scripts.architecture_page

Figures are rounded so far that a usual commit leaves them as they are.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scripts.generated_part import replace_part

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PRODUCT = ("flashedge", "profiler", "tui")
MANY_MODULES = 15
MODULES_STEP, LINES_STEP = 5, 5000
"""Figures are rounded to multiples of these."""


def fill_page(page: str) -> str:
    """The page with both parts. Raises ValueError when a mark is missing."""
    return replace_part(replace_part(page, "layers", render_layers()), "figures", render_figures())


def render_layers() -> str:
    """The layers that import-linter checks, from the top to the bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    lines = [layer.replace("flashedge.", "").replace(" | ", ", ") for layer in layers]
    return "\n".join(["```", *lines, "```"])


def render_figures() -> str:
    """The size of the code, as a Markdown table."""
    texts = {file: file.read_text(encoding="utf-8") for file in _list_modules()}
    product = {file: text for file, text in texts.items() if _find_top(file) in PRODUCT}
    folders = Counter(file.parent for file in product if file.name != "__init__.py")
    large = sorted(f for f, number in folders.items() if number > MANY_MODULES)
    knowing = sum(re.search(r"\bRunSpec\b", text) is not None for text in product.values())
    rows = [
        (
            f"folders with more than {MANY_MODULES} modules",
            ", ".join(f"`{f.relative_to(ROOT)}`" for f in large) or "none",
        ),
        (
            "modules that name `RunSpec`, and so know a request's spec",
            f"about {_round(knowing, MODULES_STEP)}",
        ),
        *(
            (f"lines of {what}", f"about {_count_lines(texts, tops):,}")
            for what, tops in (
                ("the product", PRODUCT),
                ("the lab and other scripts", ("scripts",)),
                ("tests", ("tests",)),
            )
        ),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {found} |" for what, found in rows)])


def _list_modules() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [file for name in names if (file := ROOT / name).is_file()]


def _find_top(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


def _count_lines(texts: dict[Path, str], tops: Iterable[str]) -> int:
    number = sum(text.count("\n") for file, text in texts.items() if _find_top(file) in tops)
    return _round(number, LINES_STEP)


def _round(number: int, step: int) -> int:
    return round(number / step) * step


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
