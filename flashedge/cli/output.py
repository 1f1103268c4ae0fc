"""How commands print results on stdout and messages on stderr, and how they exit.

No text acts on the terminal: nothing is markup, and control characters are shown
(`flashedge.literal`). Only data in a pipe is raw: an answer, a page.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Option

from flashedge import errors
from flashedge.console import LiteralConsole
from flashedge.literal import format_json, join_surrogates, show_in_line, show_literally

if TYPE_CHECKING:
    from rich.progress import TextColumn

PIPE_WIDTH = 10_000  # characters of a table's row in a pipe: enough for any row
Json = Annotated[bool, Option("--json", help="Print JSON.")]

NO_RESULT = errors.FlashEdgeError.exit_code
"""The command ran but has no good result: no answer, a failed problem or check, no daemon."""

INTERRUPTED = 130  # a shell's 128 + SIGINT
BROKEN_PIPE = 141  # a shell's 128 + SIGPIPE

EXIT_CODES: dict[int, str] = {
    0: "success",
    NO_RESULT: "no result: no answer, a failed problem, a failed check, no daemon (ps)",
    errors.ConfigError.exit_code: "a wrong command, option, setting or request",
    errors.EngineError.exit_code: "a model engine failed",
    errors.DaemonError.exit_code: "the daemon can't start or be reached",
    errors.StoreError.exit_code: "a file can't be read or written",
    errors.QueueFull.exit_code: "the daemon's queue is full: try again later",
    INTERRUPTED: "interrupted (ctrl-c)",
    BROKEN_PIPE: "the reader of the output went away",
}
"""Every exit code of `flashedge` itself. `launch` ends with its agent's."""


def stdout() -> LiteralConsole:
    return LiteralConsole()


def stderr() -> LiteralConsole:
    return LiteralConsole(stderr=True)


def build_text_column(template: str) -> TextColumn:
    """A column of a progress bar, such as `{task.description}`."""
    from rich.progress import TextColumn

    return TextColumn(template, markup=False)


def say(text: str = "") -> None:
    """Print a result for people on stdout. Control characters are shown in a pipe, too."""
    print(show_literally(text), flush=True)


def print_data(text: str, end: str = "\n") -> None:
    """Print data on stdout, such as an answer. Control characters are shown only on a terminal."""
    is_terminal = sys.stdout.isatty()
    print(show_literally(text) if is_terminal else join_surrogates(text), end=end, flush=True)


def print_answer(text: str) -> None:
    """Print a search's answer: set off on a terminal, alone in a pipe."""
    if not sys.stdout.isatty() or "\n" in text:
        print_data(text)
        return
    line = Text.assemble(("answer  ", "dim"), (show_literally(text), "bold"))
    stdout().print("", line, sep="\n", soft_wrap=True)


def print_json(value: Any) -> None:
    print(format_json(value, indent=2), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print rows on stdout, or the message `empty` on stderr. Terminals fold cells that are too
    long; a pipe gets every row on one line."""
    console = stdout()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_render_cell, row))
    if table.row_count == 0:
        note(empty)
        return
    console.print(table)


def _render_cell(cell: object) -> str | Text:
    if isinstance(cell, Text):
        return cell
    return "-" if cell is None else show_in_line(str(cell))


def print_lines(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Like `print_table`, but a row takes one line: a terminal cuts the cells that are too long."""

    def render(cell: object) -> Text:
        return Text(str(_render_cell(cell)), no_wrap=True, overflow="ellipsis")

    print_table(columns, ([render(cell) for cell in row] for row in rows), empty)


def note(text: str) -> None:
    """Print a message on stderr."""
    _print_message(text, "dim")


def warn(text: str) -> None:
    """Print a message on stderr that the user should not miss."""
    _print_message(text, "yellow")


def show_thinking(piece: str) -> None:
    """Print a part of a model's thinking on stderr, directly after the part before it."""
    stderr().print(piece, style="dim", soft_wrap=True, end="")


def _print_message(text: str | Text, style: str = "") -> None:
    """Print on stderr: a terminal gets lines that break at blanks, a pipe one long line."""
    console = stderr()
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def print_error(error: errors.FlashEdgeError) -> None:
    _print_message(Text.assemble(("error:", "bold red"), f" {show_literally(str(error))}"))
    if error.hint:
        _print_message(f"  {error.hint}")


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of a bug of ours, with its control characters shown, since an exception's
    text may come from outside."""
    _print_message("".join(traceback.format_exception(kind, error, trace)))


def run_guarded(run: Callable[[], None], *, as_json: bool = False) -> int:
    """Run a command and return its exit code. A FlashEdgeError is printed with its hint.

    as_json: also print the error on stdout, in the API's form.
    """
    try:
        run()
    except errors.FlashEdgeError as error:
        print_error(error)
        if as_json:
            told = {"message": str(error), "hint": error.hint, "param": error.param}
            print_json({"error": {**told, "code": error.code}})
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return end_broken_pipe()
    return 0


def end_broken_pipe() -> int:
    """Silence stdout after its reader has gone. Returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
