"""The guide says what the code does: settings, links and file names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.settings_page import PAGE, fill_page
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_setting_stands_in_the_guide() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill_page(page) == page, "run python -m scripts.settings_page"
    assert "`FLASHEDGE_IDLE_TIMEOUT_S`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_the_architecture_page_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:flashedge|docs|scripts)/[\w/.]+|[\w/]+/[\w.]+\.py)`", text)
    assert len(names) > 20
    assert not [n for n in names if not ((ROOT / n).exists() or (ROOT / "flashedge" / n).exists())]


def test_the_change_log_has_each_heading_once_in_a_release() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in log.split("\n## ")[1:]:
        headings = re.findall(r"^### (\w+)$", release, re.MULTILINE)
        assert headings
        assert len(headings) == len(set(headings))
