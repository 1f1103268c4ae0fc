"""What the dashboard asks and explains: help, a problem to submit, a file to write, a yes."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

HELP = """\
FlashEdge's dashboard: what the daemon does, as it does it.

Everywhere
  tab       next panel (shift+tab: the one before)
  ↑ ↓ j k   move; pgup, pgdn, home, end too
  /         filter runs, or the tree when it is focused
  s         submit a problem
  c         cancel the chosen run
  r         replay the chosen run; again: 1×, 4×, 16×
  e         export the shown tree as SVG or JSON
  l         events in place of the step, in a small terminal
  esc       leave filter or replay
  q         quit; runs go on

Tree
  f         follow the newest node, at the end the best path
  p         hide or show pruned nodes
  b         go to the end of the best path
  space     collapse or expand (← and → too)

Marks      … generating   · generated    ● active   ✓ complete
           ✗ pruned       ≡ duplicate    – cancelled
           ★ on the best path
A score stands as number, bar and colour (blue low, yellow high).
Goodput: tokens a second of nodes that the search keeps.
C in the list of runs: certainty, 1 - entropy of the answers.
"""
_SEARCH = re.compile(r"^([a-z_]+)-(\d+)$")


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close")
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog tall") as box:
            box.border_title = "Help"
            box.border_subtitle = "esc closes"
            yield Static(HELP, markup=False)


class Submit(ModalScreen[dict[str, Any] | None]):
    """The body of a run, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Leave"),
        Binding("ctrl+s,f2", "send", "Submit", priority=True),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Submit a problem"
            box.border_subtitle = "ctrl+s or F2 submits · tab search · esc leaves"
            yield TextArea(id="problem", tab_behavior="focus")
            yield Input(value="beam-16", id="search", placeholder="beam-16", select_on_focus=False)
            yield Static("", id="wrong")

    def on_mount(self) -> None:
        self.query_one("#problem").focus()

    @on(Input.Submitted)
    def action_send(self) -> None:
        problem = self.query_one("#problem", TextArea).text.strip()
        search = self.query_one("#search", Input).value.strip()
        match = _SEARCH.match(search)
        if not problem or match is None:
            wrong = "the problem is empty" if not problem else "search is a name-n like beam-16"
            self.query_one("#wrong", Static).update(wrong)
            return
        self.dismiss({"problem": problem, "strategy": match[1], "n": int(match[2])})


class AskLine(ModalScreen[str | None]):
    """One line of text, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title, self._value, self._hint = title, value, hint

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            box.border_subtitle = "enter writes · esc leaves"
            yield Input(value=self._value, id="value", select_on_focus=False)
            yield Static(self._hint, markup=False)

    @on(Input.Submitted)
    def _given(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class Confirm(ModalScreen[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_subtitle = "y yes · n no"
            yield Static(self._question, markup=False)
