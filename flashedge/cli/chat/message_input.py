"""What the user types in `chat`: messages of one line or many, with line editing and history."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from flashedge.cli import output
from flashedge.config import Config

CONTINUATION = "… "
FENCE = '"""'
MAX_HISTORY = 1000


def read_message(prompt: str) -> str:
    """One message. A trailing backslash continues it, and a pair of `\"\"\"` encloses many lines.

    A multi-line text that is pasted into a terminal arrives as one line of input.
    Raises EOFError at the end of input.
    """
    first = _read_line(prompt).strip()
    if first.startswith(FENCE):
        return _read_block(first.removeprefix(FENCE))
    lines = [first]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\").rstrip()
        try:
            lines.append(_read_line(CONTINUATION).rstrip())
        except EOFError:
            break
    return "\n".join(lines).strip()


def _read_block(rest: str) -> str:
    lines = [rest]
    while not lines[-1].rstrip().endswith(FENCE):
        try:
            lines.append(_read_line(CONTINUATION))
        except EOFError:
            break
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip()


def _read_line(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()
    if not sys.stdout.isatty():  # where replies go; `input` would write the prompt there, too
        output.stderr().print(prompt, end="")
        return input()
    return input(prompt)


@contextlib.contextmanager
def edit_lines(config: Config, *, is_kept: bool) -> Iterator[None]:
    """Line editing on a terminal, with the lines of earlier conversations.

    is_kept: whether later ones have the lines of this one.
    """
    if not sys.stdin.isatty():
        yield
        return
    import readline

    readline.parse_and_bind("set enable-bracketed-paste on")
    file: Path = config.state_dir / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        if is_kept:
            with contextlib.suppress(OSError):
                readline.write_history_file(file)
