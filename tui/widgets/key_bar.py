"""The dashboard's commands, and the last line, which names their keys. A click does the same."""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style
from rich.text import Text
from textual.widget import Widget


class Command(NamedTuple):
    """What the user may do, by a key or in the command palette."""

    key: str
    word: str
    """Its name in the last line. Empty: it is not named there."""

    action: str
    title: str
    """Its name in the palette. Empty: it is not listed there."""

    help: str


COMMANDS = (
    Command("?", "help", "help", "Help", "all keys and marks"),
    Command("/", "filter", "filter", "Filter", "the runs, or the tree when it is focused"),
    Command("s", "submit", "submit", "Submit", "a problem"),
    Command("c", "cancel", "cancel", "Cancel", "the chosen run"),
    Command("r", "replay", "replay", "Replay", "the chosen run; again: faster"),
    Command("f", "follow", "follow", "Follow", "the newest run and its newest node"),
    Command("^p", "commands", "command_palette", "", "this list"),
    Command("q", "quit", "quit", "Quit", "the runs go on"),
    Command("y", "copy", "copy", "Copy the step", "the text of the marked node"),
    Command("Y", "", "copy_answer", "Copy the answer", "of the chosen run"),
    Command("e", "export", "export", "Export", "the shown tree, as SVG or JSON"),
    Command("p", "pruned", "dropped", "Pruned nodes", "hide or show them"),
    Command("v", "events", "category", "Events", "of the next category"),
    Command("l", "", "log", "Log", "in place of the step, in a small terminal"),
)
KEYS = tuple((c.key, c.word, c.action) for c in COMMANDS if c.word)
"""Those of the last line: key, word and action, the most useful ones first."""


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
