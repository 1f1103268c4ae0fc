"""Rewrites a chat template so that the control tokens it writes have their private spelling.

Only the template's own texts are rewritten, except for those that it searches for or compares with:
`'</think>' in content` has to find what a client sends.

Some templates put a token together from a role: `'<|' + message.role + '|>'`. Both halves are
marked, and `join_roles` turns them into the token if a known role stands between them.
"""

import re
from collections.abc import Iterable, Sequence

from jinja2 import Environment

from flashedge.engine.vllm.prompts.spelling import PrivateSpelling

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "observation")
"""The roles of messages, as chat templates write them."""
_SEARCHES = frozenset(
    [
        "split",
        "rsplit",
        "partition",
        "rpartition",
        "startswith",
        "endswith",
        "replace",
        "strip",
        "lstrip",
        "rstrip",
        "removeprefix",
        "removesuffix",
        "find",
        "rfind",
        "index",
        "rindex",
        "count",
    ]
)
"""Methods and filters that search a text for their arguments. The text that `replace` puts in is
treated like the one that it searches for."""
_COMPARES = frozenset({"==", "!=", "eq", "ne", "in"})
"""Operators and tests that compare a value with a text."""
_Token = tuple[str, str]
"""Kind and text, as jinja's lexer gives them."""


def find_written(source: str, tokens: Iterable[str]) -> frozenset[str]:
    """Find which of the tokens the template may write. Raises TemplateSyntaxError."""
    texts = [text for (_, text), written in _walk(source) if written]
    return frozenset(t for t in tokens if any(t in text for text in texts))


def rewrite(source: str, spelling: PrivateSpelling) -> str:
    """Spell the tokens in the template's own texts privately. Raises TemplateSyntaxError."""
    halves = _list_halves(spelling.tokens)
    return "".join(
        _mark_halves(spelling.spell(text), kind, halves, spelling) if written else text
        for (kind, text), written in _walk(source)
    )


def join_roles(text: str, spelling: PrivateSpelling) -> str:
    """Make private tokens of marked halves around a known role, and drop all other marks."""
    if spelling.opens not in text and spelling.closes not in text:
        return text
    made = {f"{left}{role}{right}" for left, right, role in _list_halves(spelling.tokens)}
    whole = "|".join(map(re.escape, sorted(made, key=len, reverse=True))) or r"(?!)"
    found = re.compile(f"{spelling.opens}({whole}){spelling.closes}")
    text = found.sub(lambda match: spelling.spell(match[1]), text)
    return text.replace(spelling.opens, "").replace(spelling.closes, "")


def _walk(source: str) -> list[tuple[_Token, bool]]:
    """List a template's pieces, each with whether it may be written. Raises TemplateSyntaxError."""
    pieces = [(kind, text) for _, kind, text in Environment().lex(source)]
    significant = [at for at, (kind, _) in enumerate(pieces) if kind != "whitespace"]
    callers: list[str] = []
    found: set[int] = set()
    for place, at in enumerate(significant):
        kind, text = pieces[at]
        before = [pieces[i] for i in significant[max(0, place - 1) : place]]
        if kind == "operator" and text in "([{":
            of_loop = place > 2 and pieces[significant[place - 3]] == ("name", "for")
            is_name = bool(before) and before[0][0] == "name"
            callers.append(before[0][1] if is_name and not of_loop else "")
        elif kind == "operator" and text in ")]}" and callers:
            callers.pop()
        elif kind == "variable_begin" or kind == "block_begin":
            callers.clear()
        after = [pieces[i] for i in significant[place + 1 : place + 3]]
        if kind == "data" or (kind == "string" and not _is_searched(before, after, callers)):
            found.add(at)
    return [(piece, at in found) for at, piece in enumerate(pieces)]


def _is_searched(before: Sequence[_Token], after: Sequence[_Token], callers: Sequence[str]) -> bool:
    """Whether a text in an expression is searched for or compared, and not written. callers: the
    name before each open bracket, such as a filter, a test or `in`, but "" if there is none or the
    bracket is that of a loop, `for x in [`."""
    is_compared = any(text in _COMPARES for _, text in (*before, *after[:1]))
    is_excluded = [text for _, text in after] == ["not", "in"]
    is_argument = bool(callers) and callers[-1] in _SEARCHES | _COMPARES
    return is_compared or is_excluded or is_argument


def _list_halves(tokens: Iterable[str]) -> frozenset[tuple[str, str, str]]:
    """(left, right, role) of each token whose middle is a role."""
    return frozenset(
        (left, right, role)
        for token in tokens
        for role in ROLES
        for left, found, right in [token.partition(role)]
        if found and left and right
    )


def _mark_halves(
    text: str, kind: str, halves: frozenset[tuple[str, str, str]], spelling: PrivateSpelling
) -> str:
    """Mark what may be half of a token at either end of one text of the template."""
    quote = text[-1:] if kind == "string" else ""
    inner = text[len(quote) : len(text) - len(quote)]
    lefts = sorted({left for left, _, _ in halves}, key=len, reverse=True)
    rights = sorted({right for _, right, _ in halves}, key=len, reverse=True)
    if right := next((right for right in rights if inner.startswith(right)), None):
        inner = right + spelling.closes + inner.removeprefix(right)
    if left := next((left for left in lefts if inner.endswith(left)), None):
        inner = inner.removesuffix(left) + spelling.opens + left
    return quote + inner + quote
