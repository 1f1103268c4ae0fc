"""Replies as Markdown: what becomes looks, what stays text, and that no text acts or gets lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.cli import output
from flashedge.cli.chat.markdown import render_markdown
from tests.support.cli_rig import Patch
from tests.support.hostile import acting_texts, find_acting, strip_sequences
from tests.support.screen import open_screen

ACTING = r"\x1b\[(?:(?:1|2|4|3[0-7]|40)[;m])+|\x1b\[0m"
"""Bold, dim, underlined, coloured, and the end of it: the only sequences that Markdown prints."""


def print_on(monkeypatch: Patch, text: str) -> str:
    screen = open_screen(monkeypatch, columns=200)
    output.stdout().print(render_markdown(text))
    return screen.printed


def show(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        lines = strip_sequences(print_on(patch, text)).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# Step 1\nso\n\n## Then", "Step 1\n\nso\n\nThen"),
        ("**So** it is `x*y`.", "So it is x*y."),
        ("2. a\n5. b\n   - c", "2. a\n5. b\n   - c"),
        ("```python\ndef f():\n    return 1\n```", "python\n  def f():\n      return 1"),
        ("a\nb", "a\nb"),
    ],
)
def test_marks_become_looks(text: str, shown: str) -> None:
    assert show(text) == shown


def test_a_table() -> None:
    lines = show("| a | b |\n|---|---|\n| 1 | 22 |").splitlines()
    assert [line.split() for line in lines] == [["a", "b"], ["─────"], ["1", "22"]]


FORMULAS = (
    *("2*3*4 = 24 and (a+b)*c*(d)", "x_1 + x_2 and _y_", "2**3**4 and (a)**2 + (b)**2 and ***"),
    *(r"\(x\) and \[y\] and \frac{1}{2} and \$5 and \*", "24\n- 20\n+ 4", "> 5", "a < b > c"),
    *("    y = 2\n    z = 3", "x\n---y", "x\n===", "12. The answer", "5.", r"\boxed{44}"),
    "| a | b |\n|---|---|\n| |x| | 5 |",
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_stays_as_it_was_written(formula: str) -> None:
    assert show(formula).split() == formula.split()


LINKS = (
    *("[click](http://evil.example/x)", "![image](http://evil.example/x)", "<http://evil.example>"),
    *("[a]: http://evil.example\n[a]", "https://evil.example", "<!-- and this -->"),
    '<a href="http://evil.example">here</a> <script>x</script> <kbd>k</kbd>',
    *("<think>this is hidden elsewhere</think>", "&#x202e; &lt; &#27;[2J"),
)


@pytest.mark.parametrize("text", LINKS)
def test_links_and_html_are_text(monkeypatch: Patch, text: str) -> None:
    printed = print_on(monkeypatch, text)
    assert "\x1b]8" not in printed
    assert printed.split() == text.split()


MARKED = st.lists(
    st.sampled_from(["# ", "- ", "1. ", "*", "**", "`", "```", "\n", "|", "|-|-|\n", "    ", "> "])
    | st.sampled_from(["word", " ", "[x](y)", "<b>", "&amp;", "\\", "_", "~~", "---", "x1"])
    | acting_texts,
    max_size=30,
).map("".join)


@given(MARKED)
def test_no_word_is_lost(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        printed = print_on(patch, text)
    check_harmless(printed)
    letters = "".join(re.findall(r"[A-Za-z0-9]+", text))
    assert "".join(re.findall(r"[A-Za-z0-9]+", re.sub(ACTING, "", printed))) == letters


def check_harmless(printed: str) -> None:
    assert not find_acting(re.sub(ACTING, "", printed))
