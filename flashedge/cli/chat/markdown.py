r"""A model's text as Markdown on a terminal. Marks become styles, and no word is lost.

Answers here are mostly mathematics, so a mark counts only where it can't be a part of a formula:
headings, lists, rules, tables, fences, `code`, and **bold** around whole words. All else stays as
it was written: `2*3*4`, `x_1`, `\(x\)`, `> 5`, the number of a list's item, and a line's end.

Links, images, HTML and entities stay text, and code is not highlighted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from markdown_it import MarkdownIt
from rich import markdown
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from flashedge.literal import show_literally

if TYPE_CHECKING:
    from markdown_it.rules_inline.state_inline import StateInline

MARKS = ("heading", "list", "hr", "table", "fence", "backticks", "emphasis")
"""The rules of the parser that are on."""

_WORD = re.compile(r"\w+")


def render_markdown(text: str) -> RenderableType:
    """The text for rich to print: as Markdown, unless that would lose a word of it, for example in
    a table whose row has more cells than its head."""
    text = show_literally(text)
    shown = _Markdown(text)
    return shown if _WORD.findall(text) == _WORD.findall(shown.words) else Text(text)


def _read_bold(state: StateInline, silent: bool) -> bool:
    """The parser's rule for stars: pairs around whole words mark bold, all others are text."""
    from markdown_it.rules_inline.state_inline import Delimiter

    if silent or state.src[state.pos] != "*":
        return False
    stars = state.scanDelims(state.pos, False)
    for _ in range(stars.length):
        state.push("text", "", 0).content = "*"
        if stars.length == 2:
            state.delimiters.append(
                Delimiter(
                    marker=ord("*"),
                    length=stars.length,
                    token=len(state.tokens) - 1,
                    end=-1,
                    open=stars.can_open,
                    close=stars.can_close,
                )
            )
    state.pos += stars.length
    return True


class _Heading(markdown.Heading):
    """A heading at the left, like the text below it."""

    LEVEL_ALIGN = dict.fromkeys(markdown.Heading.LEVEL_ALIGN, "default")


class _Code(markdown.CodeBlock):
    """A block of code below the name of its language."""

    @classmethod
    def create(cls, _: markdown.Markdown, token: Any) -> _Code:
        return cls(token.info, "")

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> RenderResult:
        if self.lexer_name:
            yield Text(self.lexer_name, style="dim")
        style = console.get_style(self.style_name, default="none")
        yield Padding(Text(str(self.text).rstrip("\n"), style=style), (0, 0, 0, 2), expand=False)


class _Item(markdown.ListItem):
    """A list's item, with the mark or the number that the model wrote."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = f"{mark} "

    @classmethod
    def create(cls, _: markdown.Markdown, token: Any) -> _Item:
        return cls(f"{token.info}{token.markup}")

    def render_bullet(self, console: Any, options: ConsoleOptions) -> RenderResult:
        style = console.get_style("markdown.item.number", default="none")
        width = max(options.max_width - len(self._mark), 1)
        options = options.update(width=width)
        lines = console.render_lines(self.elements, options, style=self.style, pad=False)
        for number, line in enumerate(lines or [[]]):  # "5." alone is an item without text
            yield Segment(" " * len(self._mark) if number else self._mark, style)
            yield from line
            yield Segment.line()

    def render_number(
        self, console: Any, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        return self.render_bullet(console, options)


class _Markdown(markdown.Markdown):
    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "list_item_open": _Item,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False, justify="default")
        parser = MarkdownIt("zero").enable(MARKS)
        parser.inline.ruler.at("emphasis", _read_bold)
        self.parsed = parser.parse(text)
        self.words = "\n".join(f"{t.info}\n{t.content}" for t in self._flatten_tokens(self.parsed))
        """What will be shown, without styles."""
