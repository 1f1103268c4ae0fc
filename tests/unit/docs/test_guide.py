"""The guide says what the code does: settings, layers and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import architecture_page, settings_page
from scripts.generated_part import replace_part
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_setting_stands_in_the_guide() -> None:
    page = settings_page.PAGE.read_text(encoding="utf-8")
    assert settings_page.fill_page(page) == page, "run python -m scripts.settings_page"
    assert "`FLASHEDGE_IDLE_TIMEOUT_S`" in page


def test_the_architecture_page_has_the_layers_of_today() -> None:
    page = architecture_page.PAGE.read_text(encoding="utf-8")
    assert architecture_page.fill_page(page) == page, "run python -m scripts.architecture_page"
    assert "\nengine\nscheduling\nsearch\n" in page


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="not found"):
        replace_part("<!-- figures: -->\n", "figures", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_change_log_has_each_heading_once_in_a_release() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in log.split("\n## ")[1:]:
        headings = re.findall(r"^### (\w+)$", release, re.MULTILINE)
        assert headings
        assert len(headings) == len(set(headings))
