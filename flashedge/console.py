"""A rich console that shows text from outside literally, and `show_text` for the dashboard."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from flashedge.literal import show_literally


class LiteralConsole(Console):
    """Prints without markup, emoji codes and highlighting, and makes control characters visible.

    Control characters are replaced before the text is laid out, so that widths are right, and once
    more in what is printed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(show_literally(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = show_text(renderable)
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else show_literally(segment.text)
            yield segment if shown is segment.text else segment._replace(text=shown)


def show_text(text: Text) -> Text:
    """The text, or a copy of it in which control characters are visible."""
    shown = show_literally(text.plain)
    if shown == text.plain:
        return text
    copy = text.copy()
    copy.plain = shown
    return copy
