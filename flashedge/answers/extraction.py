r"""Finds the answer in the text of a path: the last `\boxed{...}`, or the last step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flashedge.answers.spelling import find_closing_brace

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")


def extract_answer(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance, stripped; None if there is none.

    An empty box is no answer. Of nested boxes the inner one counts.
    """
    for start in reversed([m.end() for m in _BOXED.finditer(text)]):
        end = find_closing_brace(text, start)
        if end is not None:
            return text[start:end].strip() or None
    return None


def extract_open_answer(steps: Sequence[str]) -> str | None:
    """The answer to an open-ended problem: the box of the last step, or else the whole step.

    None if every step is blank.
    """
    last = next((step for step in reversed(steps) if step.strip()), "")
    return extract_answer(last) or last.strip() or None
