"""How the turns of a conversation look, so that a reader sees where one ends.

On a terminal a line stands between turns, and replies are Markdown. Elsewhere replies are raw text,
and from the second one on each stands below the number of its message and the message itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.rule import Rule

from flashedge.cli import output
from flashedge.literal import PieceJoiner

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.live import Live

LEAST_PAUSE_S = 0.1
"""Least time between two drawings of a reply that grows."""
DRAWING_SHARE = 0.2
"""Most of the time that drawing may take: a long reply is drawn less often."""


@contextlib.contextmanager
def show_turn(number: int, prompt: str, message: str, *, is_typed: bool) -> Iterator[None]:
    """Set what the block prints apart from other turns.

    number: of the turn in this session, from 1. is_typed: whether the terminal shows prompt and
    message already, since the user typed there.
    """
    is_terminal = sys.stdout.isatty()
    if is_terminal and not is_typed:
        output.say(f"{prompt}{message}")
    elif not is_terminal and number > 1:
        output.print_data(f"\n[{number}] {' '.join(message.split())}")
    try:
        yield
    finally:
        if is_terminal:
            output.stdout().print(Rule(style="dim"))


def print_reply(text: str) -> None:
    """Print a reply that is whole."""
    if not sys.stdout.isatty():
        output.print_data(text)
        return
    from flashedge.cli.chat.markdown import render_markdown

    output.stdout().print("", render_markdown(text), "", sep="\n")


def print_boxed(reply: str, answer: str | None = None) -> None:
    """Print the answer below the reply, on a terminal. None: what the reply has in its box."""
    from flashedge.answers.extraction import extract_answer

    answer = extract_answer(reply) if answer is None else answer
    if sys.stdout.isatty() and answer is not None and answer != reply.strip():
        output.print_answer(answer)


@contextlib.contextmanager
def grow_reply() -> Iterator[Callable[[str], None]]:
    """Print a reply while it comes. Call the value with each piece of it.

    A terminal shows the end of the reply as it grows, and all of it when it is over or stopped.
    """
    joiner = PieceJoiner()
    if not sys.stdout.isatty():
        yield lambda piece: output.print_data(joiner.join(piece), end="")
        output.print_data(joiner.end())
        return
    reply = _GrowingReply()
    try:
        yield lambda piece: reply.add(joiner.join(piece))
        reply.add(joiner.end())
    finally:
        reply.print_whole()


class _GrowingReply:
    """A reply on a terminal. Nothing is drawn before its first words: thinking may come first."""

    def __init__(self) -> None:
        self._console = output.stdout()
        self._text = ""
        self._next_at = 0.0
        self._live: Live | None = None

    def add(self, piece: str) -> None:
        from rich.live import Live

        self._text += piece
        if not self._text.strip():
            return
        if self._live is None:
            self._console.print()
            self._live = Live(
                self,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        began = time.monotonic()
        if began >= self._next_at:
            self._live.refresh()
            now = time.monotonic()
            self._next_at = now + max(LEAST_PAUSE_S, (now - began) / DRAWING_SHARE)

    def print_whole(self) -> None:
        from flashedge.cli.chat.markdown import render_markdown

        if self._live is not None:
            self._live.stop()
            self._console.print(render_markdown(self._text))

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> RenderResult:
        """Yield the last lines, as many as the terminal shows."""
        from rich.segment import Segment

        from flashedge.cli.chat.markdown import render_markdown

        options = options.update(height=None)
        lines = console.render_lines(render_markdown(self._text), options, pad=False)
        for line in lines[-max(console.height - 2, 1) :]:
            yield from (*line, Segment.line())
