"""Writes the layers of the code into docs/architecture.md.

python -m scripts.architecture_page
"""

import tomllib
from pathlib import Path

from scripts.generated_part import replace_part

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"


def fill_page(page: str) -> str:
    """The page with its layers. Raises ValueError when a mark is missing."""
    return replace_part(page, "layers", render_layers())


def render_layers() -> str:
    """The layers that import-linter checks, from the top to the bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    lines = [layer.replace("flashedge.", "").replace(" | ", ", ") for layer in layers]
    return "\n".join(["```", *lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
