"""What all commands share: stdout for results, stderr for people, exit codes in one place."""

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

from flashedge.errors import FlashEdgeError, StoreError

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def stdout() -> Console:
    return Console()


def stderr() -> Console:
    return Console(stderr=True)


def note(text: str) -> None:
    """A line for people."""
    stderr().print(text, style="dim", highlight=False, markup=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def write_json(path: Path, value: Any) -> None:
    """A report as a file. Raises StoreError."""
    try:
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Rows on stdout, or the line `empty` on stderr when there is none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    count = 0
    for row in rows:
        count += 1
        table.add_row(*(escape("-" if cell is None else str(cell)) for cell in row))
    if count:
        stdout().print(table)
    else:
        note(empty)


def guarded(run: Callable[[], None]) -> int:
    """Run a command; its exit code. A FlashEdgeError becomes two lines, never a traceback."""
    try:
        run()
    except FlashEdgeError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return 0


def print_error(error: FlashEdgeError) -> None:
    console = stderr()
    console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    if error.hint:
        console.print(f"  {escape(error.hint)}", highlight=False, soft_wrap=True)


def ago(seconds: float) -> str:
    """A length of time in words: 12 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(count: float) -> str:
    """Bytes in words."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"
