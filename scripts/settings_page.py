"""Writes the tables of all settings and features into docs/guide/configure.md.

python -m scripts.settings_page
"""

from pathlib import Path

from flashedge.config import list_settings
from flashedge.config_field import Setting
from flashedge.optimizations import FEATURES
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


def render_features() -> str:
    lines = ["| feature | default | meaning |", "|---|---|---|"]
    for name, field in FEATURES.items():
        default = "auto" if field.default is None else "on" if field.default else "off"
        lines.append(f"| `{name}` | {default} | {field.metadata['description']} |")
    return "\n".join(lines)


def fill_page(page: str) -> str:
    """The page with the tables. Raises ValueError when a mark is missing."""
    page = replace_part(page, "settings", render_table())
    return replace_part(page, "features", render_features())


def _render_row(setting: Setting) -> str:
    default = setting.write(setting.default)
    default = "" if default is None else f"`{default}`"
    key = f"`{setting.name}`" if setting.is_in_file else ""
    return f"| {key} | `{setting.variable}` | {default} | {setting.description} |"


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
