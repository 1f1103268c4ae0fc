"""Writes the table of all settings into docs/guide/configure.md.

python -m scripts.settings_page
"""

from __future__ import annotations

from pathlib import Path

from flashedge.config import list_settings
from flashedge.config_field import Setting
from scripts.generated_part import replace_part

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "configure.md"


def render_table() -> str:
    """The settings as a Markdown table, in the order of the configuration."""
    lines = [
        "| key in config.toml | environment variable | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += [_render_row(setting) for setting in list_settings()]
    return "\n".join(lines)


def fill_page(page: str) -> str:
    """The page with the table. Raises ValueError when a mark is missing."""
    return replace_part(page, "settings", render_table())


def _render_row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{_write_value(setting.default)}`"
    key = f"[{setting.table}] {setting.key}" if setting.table else setting.key
    key = f"`{key}`" if setting.is_in_file else ""
    return f"| {key} | `{setting.variable}` | {default} | {setting.description} |"


def _write_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
