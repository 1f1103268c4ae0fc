"""Matches the braces of LaTeX."""

from __future__ import annotations

import re

BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a backslash with what it escapes."""


def find_closing_brace(text: str, start: int) -> int | None:
    r"""Index of the brace that closes the one before `start`; `\{` and `\}` are skipped."""
    depth = 1
    for match in BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None
