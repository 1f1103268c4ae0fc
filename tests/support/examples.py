"""The problems that the help texts, the README, the guide and `quickstart.sh` show, with answers.

They are collected from the sources themselves, so a new example is tested without being listed.
Whoever tries FlashEdge types one of them first, and the bundled pair has to answer it.

A text is a problem if it has a digit and a blank, or is a sum such as `3+4`. So these are none:
names (`bundled:beam-16`), addresses, SOLUTIONS, and texts that ask for no number (`Answer
briefly.`, tools, roles).
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from flashedge.cli.main import app
from tests.support.paths import ROOT

QUICKSTART = ROOT / "scripts" / "quickstart.sh"
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "strategies.md",
    *sorted((ROOT / "docs" / "guide").rglob("*.md")),
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

SOLUTIONS = {
    "24+20=44.",
    "24+20=34.",
    "Day 1: wins 20. 24+20=44.",
    "Day 1: wins 20. 24+20=34.",
    "Day 1: wins 20. 24+20=44.\n\nDay 1 was the last. The answer is \\boxed{44}.",
    "Day 1: wins 20. 24+20=34.\n\nDay 1 was the last. The answer is \\boxed{34}.",
}
"""Texts that are shown to be scored, and ask nothing."""

WITHOUT_PROBLEMS = ("toml", "")
"""Languages of code blocks that ask nothing: settings, and what a command prints."""

NUMBERS = (0, 7, 19)
"""What stands for the names in an f-string."""

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(flashedge [^`]+)`")
_QUOTED = re.compile(r'"([^"\n]+)"')


def list_examples() -> Iterator[tuple[str, str]]:
    """(place, problem) of all problems that are shown."""
    for place, texts in _list_sources():
        yield from ((place, text) for text in texts if is_problem(text))


def is_problem(text: str) -> bool:
    has_numbers = re.search(r"\d.*\s|\s.*\d|\d\+\d", text, re.DOTALL) is not None
    return has_numbers and text not in SOLUTIONS


def find_answer(place: str, problem: str) -> str:
    """Return the right answer. Raises AssertionError if the table has none."""
    message = f"{place} shows {problem!r}: write its answer into tests/support/examples.py"
    assert problem in ANSWERS, message
    return ANSWERS[problem]


def _list_sources() -> Iterator[tuple[str, Iterator[str]]]:
    for command, text in list_help_texts(typer.main.get_command(app)):
        yield f"{command} --help", read_help(text)
    for page in PAGES:
        yield str(page.relative_to(ROOT)), read_page(page.read_text(encoding="utf-8"))
    for module in sorted((ROOT / "flashedge").rglob("*.py")):
        yield str(module.relative_to(ROOT)), read_hints(module.read_text(encoding="utf-8"))
    script = re.findall(r'\bPROBLEM="([^"$]+)"', QUICKSTART.read_text(encoding="utf-8"))
    yield str(QUICKSTART.relative_to(ROOT)), iter(script)


def list_help_texts(command: Any, name: str = "flashedge") -> Iterator[tuple[str, str]]:
    """(command, text) of everything that `--help` prints of `command` and those below it."""
    for below in getattr(command, "commands", {}):
        yield from list_help_texts(command.get_command(None, below), f"{name} {below}")
    texts = [command.help, command.epilog, *(getattr(p, "help", None) for p in command.params)]
    yield from ((name, text) for text in texts if text)


def read_help(text: str) -> Iterator[str]:
    """Words of example commands, and what stands in quotation marks."""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("flashedge "):
            yield from read_shell(line)
        else:
            yield from _QUOTED.findall(line)


def read_hints(text: str) -> Iterator[str]:
    """Problems in JSON that a module shows, as in the hint of an error."""
    for quoted in re.findall(r'"(?:problem|prompt)": ("[^"\n]*")', text):
        yield json.loads(quoted)


def read_page(text: str) -> Iterator[str]:
    """Texts in code blocks, in inline commands, and questions in quotation marks.

    Raises AssertionError if a code block has no end, or a language that nobody reads.
    """
    for language, code in _BLOCK.findall(text):
        if language not in WITHOUT_PROBLEMS:
            assert language in READERS, f"no reader for code blocks in {language!r}"
            yield from READERS[language](code)
    prose = " ".join(_BLOCK.sub("", text).split())
    assert "```" not in prose, "a code block has no end"
    for command in _INLINE.findall(prose):
        yield from read_shell(command)
    yield from (quoted for quoted in _QUOTED.findall(prose) if quoted.endswith("?"))


def read_shell(code: str) -> Iterator[str]:
    """Words of commands, and the texts of words that are JSON."""
    for word in shlex.split(code, comments=True):
        yield from _list_texts(json.loads(word)) if word.startswith("{") else (word,)


def read_python(code: str) -> Iterator[str]:
    """Strings but for docstrings, and f-strings that are problems with NUMBERS for their names."""
    nodes = list(ast.walk(ast.parse(code)))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces: list[ast.AST] = [piece for node in formatted for piece in node.values]
    pieces += [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces:
            yield node.value
    for node in formatted:
        fixed = [str(piece.value) for piece in node.values if isinstance(piece, ast.Constant)]
        if is_problem("".join(fixed)):
            yield from (_fill(node, number) for number in NUMBERS)


def _fill(template: ast.JoinedStr, number: int) -> str:
    names = {node.id for node in ast.walk(template) if isinstance(node, ast.Name)}
    code = compile(ast.Expression(template), "<page>", "eval")
    return str(eval(code, dict.fromkeys(names, number)))


def read_json(code: str) -> Iterator[str]:
    """All texts of JSON lines."""
    for line in code.splitlines():
        yield from _list_texts(json.loads(line))


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(part)


READERS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "sh": read_shell,
    "bash": read_shell,
    "python": read_python,
    "json": read_json,
}
"""Language of a code block -> the texts that it shows."""
