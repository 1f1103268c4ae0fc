"""The last line: keys and their actions, as many as fit. A click does the same."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

KEYS = (
    ("?", "help", "help"),
    ("/", "filter", "filter"),
    ("s", "submit", "submit"),
    ("c", "cancel", "cancel"),
    ("r", "replay", "replay"),
    ("e", "export", "export"),
    ("f", "follow", "follow"),
    ("q", "quit", "quit"),
    ("p", "pruned", "dropped"),
    ("l", "log", "log"),
    ("v", "events", "category"),
)


class KeyBar(Widget):
    def __init__(self) -> None:
        super().__init__(id="keys")

    def render(self) -> Text:
        text = Text(no_wrap=True)
        for key, word, action in KEYS:
            gap = "  " if text else ""
            if len(text) + len(gap) + len(key) + 1 + len(word) > self.size.width:
                break
            click = Style(meta={"@click": f"app.{action}"})
            text.append(gap)
            text.append(key, Style(bold=True, reverse=True) + click)
            text.append(f" {word}", click)
        return text
