"""What all commands share: results on stdout, messages on stderr, one way to report errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flashedge.cli import exit_codes
from flashedge.errors import FlashEdgeError, StoreError

PIPE_WIDTH = 10_000  # columns of a table that no terminal shows: enough for any row


def stdout() -> Console:
    return Console()


def stderr() -> Console:
    return Console(stderr=True)


def note(text: str) -> None:
    """Print a message on stderr. It is never part of a command's result."""
    _print_message(Text(text, style="dim"))


def show_thinking(piece: str) -> None:
    """Print a part of a model's thinking on stderr, right behind the part before it."""
    stderr().print(piece, style="dim", highlight=False, markup=False, soft_wrap=True, end="")


def warn(text: str) -> None:
    """Print a message on stderr that the user should not miss."""
    _print_message(Text(text, style="yellow"))


def _print_message(text: Text) -> None:
    """Print on stderr: a terminal gets lines that break at blanks, a pipe one long line."""
    console = stderr()
    console.print(text, soft_wrap=not console.is_terminal)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def write_json(path: Path, value: Any) -> None:
    """Write a report to a file. Raises StoreError."""
    try:
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print rows on stdout, or the message `empty` on stderr when there is no row.

    A cell that is too long for a terminal is folded. A pipe gets every row on one line.
    """
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
    return escape("-" if cell is None else str(cell))


def print_lines(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Like `print_table`, but a row takes one line: a terminal cuts the cells that are too long."""

    def render(cell: object) -> Text:
        return Text("-" if cell is None else str(cell), no_wrap=True, overflow="ellipsis")

    print_table(columns, ([render(cell) for cell in row] for row in rows), empty)


def run_guarded(run: Callable[[], None]) -> int:
    """Run a command and return its exit code. A FlashEdgeError is printed in two lines."""
    try:
        run()
    except FlashEdgeError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.BROKEN_PIPE
    return 0


def print_error(error: FlashEdgeError) -> None:
    _print_message(Text.assemble(("error:", "bold red"), f" {error}"))
    if error.hint:
        _print_message(Text(f"  {error.hint}"))
