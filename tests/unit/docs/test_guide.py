"""The guide says what the code does: settings, layers and links; and no retired term comes back."""

import re
from pathlib import Path

import pytest

from scripts import architecture_page, settings_page
from scripts.generated_part import replace_part
from tests.support.paths import ROOT
from tests.unit.docs.test_backticked_names import FILES

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


# Each term is a private coinage or an unusual use of a word. The second column says what to write.
# The change log and the measurement log tell of the past and are left out.

RETIRED = {
    r"balloon\w*": "quota, reserved blocks",
    r"\bkv[_ ]keeper\b|\bKvKeeper\b|\bkeeper\b": "KV manager",
    r"\bforesight\b": "speculation client",
    r"\bteller\b": "event emitter",
    r"\bmend(s|ed|ing)?\b": "hint, fix",
    r"\bfixed points?\b|\bFixedPoint\b": "checkpoint",
    r"(?<!\")\bknobs?\b": "progress",
    r"\bfollow[-_ ]ups?\b|\bFollowUp\b": "continuation",
    r"\btak(e|es|en|ing) over\b": "adopt",
    r"\bhand(ed)?[-_ ]over\b": "submit",
    r"\breckon\w*": "estimate",
    r"\bbeg(in|ins|un) ahead\b": "draft ahead",
    r"\bcarried[_ ]out\b(?=\()": "a verb",
    r"\bunderstood\(": "parse",
    r"\b_?told\(": "a verb that says what happens",
    r"\bcame\(": "receive",
    r"\bhead start\b": "draft",
}
KINDS = (".py", ".sh", ".md", ".toml")
LEFT_OUT = (
    "CHANGELOG.md",
    "docs/glossary.md",  # it maps the papers' words to ours
    "flashedge/runtime/records/schema.py",  # it names fields as they were
    "scripts/train_pair/LOG.md",
    "scripts/train_pair/families/words.py",  # the words of people who type problems
    "tests/unit/docs/test_guide.py",
)


def project_files() -> list[Path]:
    files = [ROOT / name for name in FILES if name.endswith(KINDS) and name not in LEFT_OUT]
    return [file for file in files if file.is_file() and not file.is_symlink()]


@pytest.mark.parametrize("term", RETIRED, ids=list(RETIRED.values()))
def test_retired_terms_do_not_come_back(term: str) -> None:
    pattern = re.compile(term, re.IGNORECASE)
    hits = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in project_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, f"write {RETIRED[term]!r} instead:\n" + "\n".join(hits)


def test_only_tests_are_called_tests() -> None:
    """pytest collects `*_test.py`, whatever it holds."""
    names = [str(file.relative_to(ROOT)) for file in project_files()]
    called = [n for n in names if n.endswith("_test.py") or ("/test_" in n and n.endswith(".py"))]
    assert len(called) > 100
    assert not [name for name in called if not name.startswith("tests/")]
