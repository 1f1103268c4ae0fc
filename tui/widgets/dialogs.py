"""Dialogs: help, a problem to submit, a file to write, a question."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from flashedge.literal import show_in_line, show_literally
from flashedge.tui.colours import DIM
from flashedge.tui.widgets.panel import LiteralTitles
from flashedge.types import STRATEGIES

_SEARCH = re.compile(r"^([a-z][a-z_-]*?)(?:-(\d+))?$")
DEFAULT_SEARCH = "beam-16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A problem to submit, as it was typed. Seed, time limit and pair may be empty."""

    problem: str = ""
    search: str = DEFAULT_SEARCH
    """Strategy and number of paths, as in `beam-16`."""
    seed: str = ""
    limit_s: str = ""
    pair: str = ""

    def build_body(self) -> dict[str, Any]:
        """Build the body for /v1/runs. Raises ValueError, whose text tells users what is wrong."""
        match = _SEARCH.match(self.search)
        if not self.problem:
            raise ValueError("Type a problem first.")
        if match is None:
            raise ValueError("A search is like beam-16.")
        body: dict[str, Any] = {"problem": self.problem, "strategy": match[1].replace("-", "_")}
        body |= {"n": int(match[2])} if match[2] else {}
        if self.seed:
            if not self.seed.isdecimal():
                raise ValueError("A seed is a whole number, or empty.")
            body["seed"] = int(self.seed)
        if self.limit_s:
            if re.fullmatch(r"\d{1,9}(\.\d*)?", self.limit_s) is None:
                raise ValueError("A time limit is a number of seconds, or empty.")
            body["deadline_s"] = float(self.limit_s)
        return body | ({"pair": self.pair} if self.pair else {})


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
  y Y       copy the marked step; copy the answer
  ctrl+p    all commands, and the theme
  v         events: all, steps, certainty, memory, errors
  l         show events instead of the step, in a small terminal
  esc       close the filter or the replay
  q         quit; the runs go on
Text in a panel can be marked with the mouse; ctrl+c copies it.

Tree
  p         hide or show pruned nodes
  b         go to the end of the best path
  n N       next and previous match of the filter
  space     collapse or expand (← and → too)

Marks      … generating   · generated    ● active   ✓ complete
           ✗ pruned       ≡ duplicate    – cancelled
           ≈ cut by a token limit or its run's end
           ★ on the best path   ×3 three siblings with this text
The number before a node is its level. Only branch points indent.
A score is a number, a bar and a colour, from low (blue) to high.
MCTS: N visits, Q mean value of its rollouts, P prior.
Goodput: tokens per second of nodes that the search keeps.
C in the run list: certainty, 1 - entropy of the answers.
A path: about 420, 1 in 10 over 532 tokens: as predicted, half of
such paths have more than 420 tokens, and one in ten more than 532.
"""


class Box(LiteralTitles, Vertical):
    def __init__(self, title: str, subtitle: str) -> None:
        super().__init__(classes="dialog")
        self.retitle(title, subtitle)


class ScrolledBox(LiteralTitles, VerticalScroll): ...


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close")
    ]

    def compose(self) -> ComposeResult:
        with ScrolledBox(classes="dialog tall") as box:
            box.retitle("Help", "esc closes")
            yield Static(HELP, markup=False)


class Submit(ModalScreen[Draft | None]):
    """Asks for a problem and a search. Its result is what was typed, or None if it was closed.
    draft, error: what the daemon refused, and why; None and empty at first. pair: the default."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("ctrl+s,f2", "send", "Submit", priority=True),
    ]

    def __init__(
        self, strategies: Sequence[str], draft: Draft | None, error: str = "", pair: str = ""
    ) -> None:
        super().__init__()
        self._strategies = strategies
        self._draft, self._error, self._pair = draft or Draft(), error, pair

    def compose(self) -> ComposeResult:
        draft = self._draft
        with Box("Submit a problem", "ctrl+s or F2 submits · tab next field · esc closes"):
            yield Static("Problem", classes="field-name", markup=False)
            yield TextArea(show_literally(draft.problem), id="problem-field", tab_behavior="focus")
            yield from _add_field("Search", "search", draft.search, DEFAULT_SEARCH)
            yield OptionList(*map(_build_option, self._strategies), id="strategies")
            yield from _add_field("Seed", "seed", draft.seed, "0")
            yield from _add_field("Time limit", "limit_s", draft.limit_s, "none; in seconds")
            yield from _add_field("Pair", "pair", draft.pair, self._pair or "the daemon's")
            yield Static(show_literally(self._error), id="wrong", markup=False)
            yield Button(Content("Submit"), id="send", compact=True)

    def on_mount(self) -> None:
        self.query_one("#search" if self._error else "#problem-field").focus()

    @on(OptionList.OptionSelected)
    def _pick_strategy(self, event: OptionList.OptionSelected) -> None:
        """Put the strategy into the search field, and keep the number that stands there."""
        line = self.query_one("#search", Input)
        match = re.search(r"\d+$", line.value)
        line.value = f"{event.option_id}-{match[0] if match else 16}"
        line.focus()

    @on(Input.Submitted)
    @on(Button.Pressed)
    def action_send(self) -> None:
        lines = ("search", "seed", "limit_s", "pair")
        draft = Draft(
            problem=self.query_one("#problem-field", TextArea).text.strip(),
            **{name: self.query_one(f"#{name}", Input).value.strip() for name in lines},
        )
        try:
            draft.build_body()
        except ValueError as error:
            self.query_one("#wrong", Static).update(str(error))
        else:
            self.dismiss(draft)


def _add_field(name: str, id: str, value: str, placeholder: str) -> ComposeResult:
    with Horizontal(classes="field"):
        yield Static(name, classes="field-name", markup=False)
        yield Input(
            value=show_in_line(value),
            id=id,
            placeholder=show_in_line(placeholder),
            select_on_focus=False,
            compact=True,
        )


def _build_option(name: str) -> Option:
    about = STRATEGIES.get(name, "a program of your own")
    text = Text.assemble(f"{name:<20} ", (about, DIM), no_wrap=True)
    text.truncate(66, overflow="ellipsis")  # a dialog's 72 cells, without frames and padding
    return Option(text, id=name)


class AskLine(ModalScreen[str | None]):
    """Asks for one line. Its result is the text, or None for an empty one or a closed dialog."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title, self._value, self._hint = title, value, hint

    def compose(self) -> ComposeResult:
        with Box(self._title, "enter writes · esc closes"):
            yield Input(value=show_in_line(self._value), id="value", select_on_focus=False)
            yield Static(show_literally(self._hint), markup=False)

    @on(Input.Submitted)
    def _accept(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class Confirm(ModalScreen[bool]):
    """Asks a question. Its result is the answer. run: the id of the run in question, if any."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str, run: str = "") -> None:
        super().__init__()
        self._question = question
        self.run = run

    def compose(self) -> ComposeResult:
        with Box("", "y yes · n no"):
            yield Static(show_literally(self._question), markup=False)
