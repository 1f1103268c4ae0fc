"""Dialogs: help, a problem to submit, a file to write, a question."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from flashedge.literal import show_in_line, show_literally
from flashedge.tui.state.scores import DIM
from flashedge.tui.strategies import STRATEGIES
from flashedge.tui.widgets.literal import LiteralTitles

HELP = """\
The dashboard shows what the FlashEdge daemon does.

Everywhere
  tab       next panel (shift+tab: the previous one)
  ↑ ↓ j k   move; pgup, pgdn, home, end too
  end       of the runs: list older ones
  /         filter all runs, or the tree when it is focused
  s         submit a problem
  c         cancel the chosen run
  r         replay the chosen run; again: 1×, 4×, 16×
  e         export the shown tree as SVG or JSON
  f         follow the newest run and its newest node
  v         events: all, steps, certainty, memory, errors
  l         show events instead of the step, in a small terminal
  esc       close the filter or the replay
  q         quit; the runs go on

Tree
  p         hide or show pruned nodes
  b         go to the end of the best path
  space     collapse or expand (← and → too)

Marks      … generating   · generated    ● active   ✓ complete
           ✗ pruned       ≡ duplicate    – cancelled
           ≈ cut by a token limit or its run's end
           ★ on the best path   ×3 three siblings with this text
The number before a node is its level. Only branch points indent.
A score is a number, a bar and a colour (blue low, yellow high).
MCTS: N visits, Q mean value of its rollouts, P prior.
Goodput: tokens per second of nodes that the search keeps.
C in the run list: certainty, 1 - entropy of the answers.
A path about 420, tail 532: half of its kind have more than 420
tokens, as predicted, and one in ten more than 532.
"""
_SEARCH = re.compile(r"^([a-z][a-z_-]*?)(?:-(\d+))?$")
DEFAULT_SEARCH = "beam-16"


class Box(LiteralTitles, Vertical):
    """The frame of a dialog."""


class ScrolledBox(LiteralTitles, VerticalScroll):
    """The same for more than a screen holds."""


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close")
    ]

    def compose(self) -> ComposeResult:
        with ScrolledBox(classes="dialog tall") as box:
            box.border_title = "Help"
            box.border_subtitle = "esc closes"
            yield Static(HELP, markup=False)


class Submit(ModalScreen[dict[str, Any] | None]):
    """Asks for a problem and a search. Its result is the body of a run, or None.

    problem, search, error: what to begin with, after the daemon refused them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("ctrl+s,f2", "send", "Submit", priority=True),
    ]

    def __init__(self, problem: str = "", search: str = DEFAULT_SEARCH, error: str = "") -> None:
        super().__init__()
        self._problem, self._search, self._error = problem, search, error

    def compose(self) -> ComposeResult:
        with Box(classes="dialog") as box:
            box.border_title = "Submit a problem"
            box.border_subtitle = "ctrl+s or F2 submits · tab next field · esc closes"
            yield TextArea(show_literally(self._problem), id="problem", tab_behavior="focus")
            yield Input(
                value=show_in_line(self._search),
                id="search",
                placeholder=DEFAULT_SEARCH,
                select_on_focus=False,
                compact=True,
            )
            yield Static(show_literally(self._error), id="wrong", markup=False)
            yield OptionList(*map(_option, STRATEGIES), id="strategies")

    def on_mount(self) -> None:
        self.query_one("#search" if self._error else "#problem").focus()

    @on(OptionList.OptionSelected)
    def _pick_strategy(self, event: OptionList.OptionSelected) -> None:
        """Put the strategy into the search field, with the n that stands there."""
        line = self.query_one("#search", Input)
        match = re.search(r"\d+$", line.value)
        line.value = f"{event.option_id}-{match[0] if match else 16}"
        line.focus()

    @on(Input.Submitted)
    def action_send(self) -> None:
        problem = self.query_one("#problem", TextArea).text.strip()
        search = self.query_one("#search", Input).value.strip()
        match = _SEARCH.match(search)
        if not problem or match is None:
            wrong = "Type a problem first." if not problem else "A search is like beam-16."
            self.query_one("#wrong", Static).update(wrong)
            return
        body = {"problem": problem, "strategy": match[1].replace("-", "_")}
        self.dismiss(body | ({"n": int(match[2])} if match[2] else {}))


def _option(name: str) -> Option:
    text = Text.assemble(f"{name:<20} ", (STRATEGIES[name], DIM), no_wrap=True)
    return Option(text, id=name)


class AskLine(ModalScreen[str | None]):
    """Asks for one line of text. Its result is the text, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title, self._value, self._hint = title, value, hint

    def compose(self) -> ComposeResult:
        with Box(classes="dialog") as box:
            box.border_title = self._title
            box.border_subtitle = "enter writes · esc closes"
            yield Input(value=show_in_line(self._value), id="value", select_on_focus=False)
            yield Static(show_literally(self._hint), markup=False)

    @on(Input.Submitted)
    def _accept(self, event: Input.Submitted) -> None:
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
        with Box(classes="dialog") as box:
            box.border_subtitle = "y yes · n no"
            yield Static(show_literally(self._question), markup=False)
