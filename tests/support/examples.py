"""The problems that the help texts, the README, the guide and `quickstart.sh` show, with answers.

They are collected from the sources themselves, so a new example is tested without being listed.
Whoever tries FlashEdge types one of them first, and the bundled pair has to answer it.

A problem is a quoted text that has a digit and ends with a question mark, a quoted sum, or a text
with a digit that a command or a field of a request asks.
"""

import re
from collections.abc import Iterator

from tests.support.paths import ROOT

SOURCES = (
    ROOT / "README.md",
    ROOT / "docs" / "strategies.md",
    *sorted((ROOT / "docs" / "guide").rglob("*.md")),
    *sorted((ROOT / "flashedge").rglob("*.py")),
    ROOT / "scripts" / "quickstart.sh",
)
ANSWERS = {
    "Dan has 24 nuts and wins 20. How many has he now?": "44",
    "Dan has 24 nuts. Day 1: wins 20. Day 2: lends 12. How many nuts has Dan after day 2?": "32",
    "Dan has 24 nuts. Day 1: wins 20. How many nuts has Dan after day 1?": "44",
    "Dan has 31 nuts. Day 1: wins 20. How many nuts has Dan after day 1?": "51",
    "Dan has 43 nuts. Day 1: wins 20. How many nuts has Dan after day 1?": "63",
    "Dan has 24 nuts. Day 1: wins 20. Day 2: gets 52. Day 3: drops 41. Day 4: drops 30. "
    "Ben has 43 stones. Day 5: wins 10. Day 6: loses 25. Day 7: buys 44. Day 8: uses 28. "
    "How many nuts has Dan after day 8?": "26",
    "What is 12 + 7?": "19",
}
"""The right answer of each problem."""
NUMBERS = (0, 7, 19)
"""What stands for the name in an f-string such as "Dan has {24 + number} nuts"."""

_QUOTED = re.compile(r"""(?<=["'])(?:[A-Z][^"'\\]*\d[^"'\\]*\?|\d+ [-+*] \d+)(?=\\?["'])""")
_COMMAND = re.compile(
    r"""\bflashedge (?:solve|chat) (?:"([^"\\]*\d[^"\\]*)"|'([^'\\]*\d[^'\\]*)'|(\d+[-+*]\d+))"""
)
_FIELD = re.compile(r"""\\?"(?:problem|prompt|content)\\?": \\?"([^"\\{}]*\d[^"\\]*?)(?=\\?")""")
_BLOCK = re.compile(r"^ *```(?:sh|python|json|text|toml|)\n.*?^ *```$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"\{(\d+) \+ \w+\}")


def list_examples() -> Iterator[tuple[str, str]]:
    """(place, problem) of all problems that are shown."""
    for source in SOURCES:
        place = str(source.relative_to(ROOT))
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".md":
            check_blocks(text)
        yield from ((place, problem) for problem in find_problems(text))


def find_problems(text: str) -> set[str]:
    """Lines may break within a problem, in Python also within a string."""
    joined = re.sub(r'" "', "", " ".join(text.split()))
    found = {*_QUOTED.findall(joined), *_FIELD.findall(joined)}
    found |= {"".join(texts) for texts in _COMMAND.findall(joined)}
    return {_fill(shown, number) for shown in found for number in NUMBERS}


def check_blocks(page: str) -> None:
    """Raises AssertionError if a code block has no end, or a language that no pattern is for."""
    assert "```" not in _BLOCK.sub("", page), "a code block without end or in an unknown language"


def _fill(text: str, number: int) -> str:
    return _NAMED.sub(lambda named: str(int(named[1]) + number), text)


def find_answer(place: str, problem: str) -> str:
    """Return the right answer. Raises AssertionError if the table has none."""
    message = f"{place} shows {problem!r}: write its answer into tests/support/examples.py"
    assert problem in ANSWERS, message
    return ANSWERS[problem]
