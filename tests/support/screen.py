"""Standard output and error as one terminal, which keeps what is printed on it."""

import io
import sys

import pytest


class Screen(io.TextIOWrapper):
    """A terminal in UTF-8. It refuses what UTF-8 can't hold, as a real one's stream does."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def printed(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def open_screen(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Screen:
    """A fresh screen. All that Python prints from now on goes there."""
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in (("COLUMNS", str(columns)), ("LINES", "40"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return screen
